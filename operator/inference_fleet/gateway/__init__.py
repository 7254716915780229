"""The data plane: one OpenAI-compatible door in front of the engines of one InferencePolicy.

It reads what the operator wrote (`routes`), never decides what runs, and imports neither `cluster` nor `plan`. The core
(`front`, `relay`, `assemble`, `choose`, `sse`) takes bytes and gives bytes, and knows no HTTP library; `web` and
`upstream` are the thin shells of aiohttp around it.
"""
