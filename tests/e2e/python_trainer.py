"""A trainer in Python, from docs/protocol.md alone: python_trainer.py BIND TASKS.jsonl OUT.jsonl

Serves the tasks (one JSON object a line with the fields of `Task` in records.capnp, promptIds as a
list), takes every (taskId, sampleIndex) once, ends when it has all. Needs pyzmq, pycapnp, xxhash."""
import array, contextlib, json, os, pathlib, struct, sys, time, uuid
import capnp, xxhash, zmq

NAMES = {1: "Hello", 2: "Welcome", 3: "Heartbeat", 4: "Bye", 5: "NeedHello", 16: "TaskMessage",
         17: "TaskAck", 32: "Trajectory", 33: "Gap", 34: "Ack", 35: "Nack"}
NUMBERS = {name: number for number, name in NAMES.items()}
ARRAYS = {"tokenIds": "i", "lossMask": "B", "logprobs": "f", "rawLogprobs": "f", "supportLogmass": "f"}
HEADER = struct.Struct("<4sHHII16sQQQQQ")  # 72 bytes, then the XXH3-64 of them
schemas = pathlib.Path(__file__).resolve().parents[2] / "protocol"
imports = [str(pathlib.Path(capnp.__file__).parents[1])]
records, messages = (capnp.load(str(schemas / f), imports=imports) for f in ("records.capnp", "messages.capnp"))
checksum, ints = xxhash.xxh3_64_intdigest, lambda values: array.array("i", values).tobytes()

def encode(name, producer, epoch, fields):
    words = 1024 + len(repr(fields)) // 2  # enough for a single segment
    body = getattr(messages, name).new_message(num_first_segment_words=words, **fields).to_bytes()
    head = HEADER.pack(b"WRPL", 2, NUMBERS[name], 0, 0, producer, epoch, 0, len(body), 0, checksum(body))
    return head + struct.pack("<Q", checksum(head)) + body

def decode(frame):
    magic, version, kind, _, _, producer, epoch, seq, size, extra, check = HEADER.unpack(frame[:72])
    body = frame[80:80 + size]  # the tensors are behind it
    assert (magic, version, len(frame)) == (b"WRPL", 2, 80 + size + extra)
    assert frame[72:80] == struct.pack("<Q", checksum(frame[:72])) and check == checksum(body)
    schema = getattr(records if NAMES[kind] == "Trajectory" else messages, NAMES[kind])
    with schema.from_bytes(body, traversal_limit_in_words=len(body)) as reader:
        return NAMES[kind], producer, epoch, seq, body, reader.to_dict()

bind, tasks_path, out_path = sys.argv[1:]
tasks = {task["taskId"]: dict(task, promptIds=ints(task.get("promptIds", [])))
         for task in map(json.loads, open(tasks_path))}
wanted = {(name, i) for name, task in tasks.items() for i in range(task.get("groupSize", 1))}
out, upto, leases = open(out_path, "w"), {}, {}  # seq taken of each producer; producer of each task
lineage, trainer_epoch = str(uuid.uuid4()), time.time_ns()  # nothing is kept over a restart
socket = zmq.Context().socket(zmq.ROUTER)
socket.router_mandatory, socket.linger = 1, 2000
socket.bind(bind)
print(socket.last_endpoint.decode(), flush=True)
while wanted:
    peer, frame = socket.recv_multipart()
    name, producer, epoch, seq, body, fields = decode(frame)
    def reply(name, **fields):
        with contextlib.suppress(zmq.ZMQError):  # the peer is gone: it will say hello again
            socket.send_multipart([peer, encode(name, producer, epoch, fields)])
    if name == "Hello":
        upto.setdefault(producer, 0)
        leases = {task: owner for task, owner in leases.items() if owner != producer}
        leases |= dict.fromkeys(fields.get("openTaskIds", []), producer)
        reply("Welcome", lineageId=lineage, trainerEpoch=trainer_epoch, commitUpto=upto[producer],
              creditSeq=upto[producer] + 256, creditBytes=1 << 28, maxMessageBytes=1 << 28,
              heartbeatMs=1000, livenessMs=10000)
    elif producer not in upto:
        reply("NeedHello", reason="unknown producer")
        continue
    first, last = (fields["from"], fields["to"]) if name == "Gap" else (seq, seq)
    if name == "TaskAck" and fields["answer"] in ("rejected", "busy"):
        print(fields["taskId"], fields["answer"], fields["reason"], file=sys.stderr)
        leases.pop(fields["taskId"], None)  # offered again with the next heartbeat, unless rejected
        wanted = {s for s in wanted if fields["answer"] == "busy" or s[0] != fields["taskId"]}
    elif name in ("Trajectory", "Gap") and first > upto[producer] + 1:
        reply("Nack", seq=first, code="outOfOrder", reason=f"wanted seq {upto[producer] + 1}")
    elif name in ("Trajectory", "Gap") and last > upto[producer]:
        if (sample := (fields.get("taskId"), fields.get("sampleIndex"))) in wanted:
            fields.update({key: array.array(code, fields[key]).tolist() for key, code in ARRAYS.items()})
            fields["recordXxh3"] = xxhash.xxh3_64_hexdigest(body)
            print(json.dumps(fields, default=bytes.hex), file=out, flush=True)
            os.fsync(out.fileno())  # durable, so that it may be acknowledged as committed
            wanted.remove(sample)
        upto[producer] = last
    if name in ("Hello", "Heartbeat"):
        for task_id in sorted({task for task, _ in wanted} - leases.keys())[:64]:
            leases[task_id] = producer
            missing = ints(sorted(i for task, i in wanted if task == task_id))
            reply("TaskMessage", leaseId=time.time_ns(), task=dict(tasks[task_id], sampleIndices=missing))
    reply("Ack", lineageId=lineage, recvUpto=upto[producer], commitUpto=upto[producer],
          creditSeq=upto[producer] + 256, creditBytes=1 << 28)
