"""FastAPI app: the gateway mounted inside an application of your own.

Run it with ``uvicorn fastapi_app:app --app-dir examples``. It needs
``pip install 'adacompute[serve]' fastapi``. OPENAI_BASE_URL is the address of your server and MODEL
the name of its model. Clients then use http://127.0.0.1:8000/llm/v1 as their base URL.
"""

from __future__ import annotations

import os

from fastapi import FastAPI

import adacompute as ada

policy = ada.load_policy("example")  # or a policy that you fitted and saved
gateway = ada.create_app(
    {os.environ["MODEL"]: policy}, base_url=os.environ["OPENAI_BASE_URL"], budget=2.0
)

app = FastAPI(lifespan=gateway.lifespan)  # a mounted application is started by the outer one
app.mount("/llm", gateway)


@app.get("/")
def read_budget() -> dict[str, float]:
    """Return the price that samples are compared with, as a page of your own."""
    return {"budget": 2.0, "price": policy.price_for(2.0)}
