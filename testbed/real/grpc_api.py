"""SGLang's native gRPC service (`--grpc-port`): the messages of `Generate`, and its events in the form of `/generate`."""

import json

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "sglang.runtime.v1"
METHOD = f"/{PACKAGE}.SglangService/Generate"
FIELD = descriptor_pb2.FieldDescriptorProto
# Name, number, type and label of the fields in use.
FIELDS = {
    "SamplingParams": [("max_new_tokens", 8, FIELD.TYPE_INT32, 1), ("ignore_eos", 12, FIELD.TYPE_BOOL, 1), ("n", 13, FIELD.TYPE_INT32, 1)],
    "GenerateRequest": [
        ("input_ids", 1, FIELD.TYPE_INT32, 3),
        ("sampling_params", 2, "SamplingParams", 1),
        ("stream", 3, FIELD.TYPE_BOOL, 1),
        ("rid", 7, FIELD.TYPE_STRING, 1),
    ],
    # An entry of a map<string, string>.
    "Entry": [("key", 1, FIELD.TYPE_STRING, 1), ("value", 2, FIELD.TYPE_STRING, 1)],
    "GenerateResponse": [("output_ids", 1, FIELD.TYPE_INT32, 3), ("meta_info", 2, "Entry", 3), ("finished", 3, FIELD.TYPE_BOOL, 1)],
}


def messages() -> dict:
    file = descriptor_pb2.FileDescriptorProto(name="generate.proto", package=PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            if isinstance(kind, str):
                message.field.add(name=field, number=number, type=FIELD.TYPE_MESSAGE, type_name=f".{PACKAGE}.{kind}", label=label)
            else:
                message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in FIELDS}


MESSAGES = messages()


class Client:
    """One connection to the service."""

    def __init__(self, address: str):
        self.channel = grpc.aio.insecure_channel(address)
        self.generate = self.channel.unary_stream(
            METHOD,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["GenerateResponse"].FromString,
        )

    async def ask(self, load, record: dict, body: dict, leaves_after: int) -> None:
        """Sends a request with the JSON `body` of `/generate`, and passes its events to the load."""
        params = MESSAGES["SamplingParams"](**body["sampling_params"])
        words = {name: body[name] for name in ("input_ids", "stream", "rid") if name in body}
        call = self.generate(MESSAGES["GenerateRequest"](sampling_params=params, **words))
        try:
            async for message in call:
                load.event(record, event(message))
                if record["leave"] and record["events"] >= leaves_after:
                    record["left"] = True
                    call.cancel()
                    return
        except grpc.aio.AioRpcError as error:
            record["error"] = repr(error)[:200]


def event(message) -> dict:
    """A response in the form of an event of `/generate`."""
    meta = {entry.key: entry.value for entry in message.meta_info}
    for name in ("completion_tokens", "finish_reason"):
        if name in meta:
            meta[name] = json.loads(meta[name])
    return {"output_ids": list(message.output_ids), "meta_info": meta}
