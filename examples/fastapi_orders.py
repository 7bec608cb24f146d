"""A service that stores each order before it answers: `uvicorn fastapi_orders:app`.

It needs `pip install fastapi uvicorn` and the topic `orders`.
"""

import contextlib

from fastapi import FastAPI, HTTPException, Request

import vq
from vq import aio


@contextlib.asynccontextmanager
async def lifespan(app):
    async with aio.MessageFactory() as factory, await factory.create_producer() as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{customer}", status_code=201)
async def order(customer: str, request: Request):
    message = vq.Message("orders", await request.body(), key=customer)
    try:
        result = await app.state.producer.send(message, timeout=3)
    except vq.Refused as error:  # certainly not stored
        raise HTTPException(503 if error.retriable else 400, str(error)) from error
    except vq.OutcomeUnknown as error:  # perhaps stored
        raise HTTPException(504, str(error)) from error
    return {"partition": result.partition, "offset": result.offset}
