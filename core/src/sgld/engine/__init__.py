"""The joint where components are called, and who drives it; see `engine.Engine`."""
