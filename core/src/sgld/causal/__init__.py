"""What a causal model remembers from chunk to chunk, and how long.

`cache` is the contract, `state` bundles all that lives across the chunks of one generation and
`snapshot` writes it down. `kv` is the ring of keys and values (`slabs` its storage, `books` its
bookkeeping, `undo` its way back, `view` what a layer sees); `policies` decide what it keeps and
`positions` where that stands in time. `cross` holds a text's keys and values, `kept` any other
value. `blocks` cut a clip into chunks. These need no torch: blocks, books, policies, positions.
"""
