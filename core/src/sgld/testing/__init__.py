"""Tools for tests and for plugin authors; nothing here names a model family.

- `sgld.testing.randomness`: `reinitialise(module, seed)` fills every parameter of a module.
- `sgld.testing.encoders`: a character tokenizer, a tiny T5-like text encoder and a tiny CLIP tower.
- `sgld.testing.plugin`: a pytest plugin that is asked for, with fixtures and options.
- `sgld.testing.conformance`: what each kind of plugin promises, as classes of tests.
- `sgld.testing.parity`: `relative_l2(a, b)` and `ParityTable`, the table of `pytest -m parity -rA`.

torch and transformers are imported when a function runs, never when a module is imported.
"""
