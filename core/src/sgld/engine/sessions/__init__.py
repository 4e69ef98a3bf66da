"""Realtime sessions inside an engine: state that lives across chunks, and who makes the next one.

`desk` takes commands, `opening` makes sessions of them, `doing` does the others, `answers` answers;
`driving` turns a `session` into forwards by its `jobs`, `outlet` hands its chunks over, `lane`
decodes beside the engine, `turns` shares the device between sessions and ordinary jobs, `budget`
admits by memory, `snapshot` writes a session down.
"""
