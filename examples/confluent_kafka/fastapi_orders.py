"""As ../fastapi_orders.py, with confluent-kafka: `uvicorn fastapi_orders:app`.

It needs `pip install fastapi uvicorn confluent-kafka` and the topic `orders`.
"""

import asyncio
import contextlib
import os

from confluent_kafka import KafkaException, Producer
from fastapi import FastAPI, HTTPException, Request


@contextlib.asynccontextmanager
async def lifespan(app):
    producer = Producer(
        {
            "bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092"),
            "enable.idempotence": True,
            "delivery.timeout.ms": 3000,
        }
    )
    app.state.producer = producer
    polling = asyncio.create_task(poll(producer))  # nobody else calls the callbacks
    yield
    polling.cancel()
    await asyncio.to_thread(producer.flush, 5)


async def poll(producer):
    while True:
        producer.poll(0)
        await asyncio.sleep(0.005)


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{customer}", status_code=201)
async def order(customer: str, request: Request):
    loop = asyncio.get_running_loop()
    stored = loop.create_future()

    def done(error, message):
        if stored.done():
            return
        if error:
            stored.set_exception(KafkaException(error))
        else:
            stored.set_result(message)

    try:
        app.state.producer.produce("orders", await request.body(), customer, on_delivery=done)
        message = await asyncio.wait_for(stored, 4)
    except BufferError as error:  # certainly not stored
        raise HTTPException(503, str(error)) from error
    except KafkaException as error:
        refused = error.args[0].code() in (10, 29)  # MSG_SIZE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED
        raise HTTPException(400 if refused else 504, str(error)) from error
    except TimeoutError as error:  # perhaps stored
        raise HTTPException(504, str(error)) from error
    return {"partition": message.partition(), "offset": message.offset()}
