"""The porter: finds plugins, asks what they bring, and decides who answers for what.

`sgld.plugins.catalog.load_catalog()` is the way in; see `find`, `describe`, `resolve`, `recognise`,
`choose` and `lock` for the steps. Nothing here imports torch.
"""
