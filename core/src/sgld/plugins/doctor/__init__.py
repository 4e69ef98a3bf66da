"""The doctor: `sgld plugins check` examines every plugin alone, in a process that may die.

`check.check(...) -> Report` is the way in. The asking process imports no plugin and no torch; each
plugin is imported by a `worker` with a time limit, and what that process wrote down before it ended
is read by `process`.
"""
