"""The HTTP front: OpenAI's and llama-server's API on starlette and uvicorn.

server.py     the thread with the web server      bridge.py     between its event loop and the coordinator's thread
app.py        routes and middleware               handlers.py   one function per endpoint
requests.py   bodies → checked requests           prompts.py    text and chat messages → tokens
responses.py  the shapes of answers               streams.py    server-sent events, clients that go away
errors.py     what went wrong → status and body   metrics.py    Prometheus counters
"""
