"""Malformed frames thrown at the trainer's socket, at the server of weights, and at a worker, from strangers
and amid the real stream: each is refused with what is wrong with it, and the run is unharmed."""
import socket
import struct
import threading

import xxhash
import zmq

import harness

HEADER = struct.Struct("<4sHHII16sQQQQQ")


def frame(body=b"", magic=b"WRPL", version=2, kind=1, flags=0, zero=0, size=None, extra=0, check=None):
    """Header and body; every field can be wrong."""
    head = HEADER.pack(magic, version, kind, flags, zero, b"p" * 16, 1, 0, len(body) if size is None else size, extra,
                       xxhash.xxh3_64_intdigest(body) if check is None else check)
    return [head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + body]


def flipped(message, offset):
    return [message[:offset] + bytes([message[offset] ^ 1]) + message[offset + 1:]]


def malformed_messages(limit_bytes):
    [good] = frame(b"\0" * 16)
    return {
        "nothing": [b""],
        "garbage": [b"\xff" * 144],
        "two frames": [good[:80], good[80:]],
        "four frames": [good, b"", b"x", b"y"],
        "half a header": [good[:40]],
        "only a header": [good[:80]],
        "flipped bit in the header": flipped(good, 20),
        "flipped bit in the body": flipped(good, 80),
        "truncated body": [good[:-8]],
        "something behind the body": [good + b"\0"],
        "lengths that wrap around": frame(b"\0" * 16, size=17, extra=2**64 - 1),
        "wrong magic": frame(b"\0" * 16, magic=b"WRPX"),
        "wrong version": frame(b"\0" * 16, version=1),
        "unknown type": frame(b"\0" * 16, kind=999),
        "unknown flags": frame(b"\0" * 16, flags=0xF0),
        "not zero": frame(b"\0" * 16, zero=7),
        "an odd number of bytes": frame(b"\0" * 13),
        "two million segments": frame(struct.pack("<I", 2_000_000) + b"\0" * 60),
        "a pointer to nowhere": frame(struct.pack("<II", 0, 1) + struct.pack("<Q", 0x0000FFFF_FFFFFFF0)),
        "oversized": frame(b"\0" * (limit_bytes + 4096)),
    }


def throw_tcp_garbage(endpoint):
    """Bytes that are not even ZeroMQ, and a connection that says nothing."""
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b"\xff" * 1000, b""):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(data)


class Proxy:
    """Between one worker and the trainer; it passes everything on and can throw messages at either."""

    def __init__(self, trainer_endpoint):
        self.context = zmq.Context()
        self.front = self.context.socket(zmq.ROUTER)  # the worker connects here
        self.front.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{harness.free_port()}"
        self.front.bind(self.endpoint)
        self.trainer_endpoint = trainer_endpoint
        self.thrown = {"worker": 0, "trainer": 0}
        self.to_throw = []
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        backs = {}  # a connection to the trainer for each of the worker's
        while not self.stop.is_set():
            ready = [s for s in [self.front, *backs.values()] if s.poll(1)]
            if self.front in ready:
                peer, *frames = self.front.recv_multipart()
                if peer not in backs:
                    backs[peer] = self.context.socket(zmq.DEALER)
                    backs[peer].linger = 0
                    backs[peer].connect(self.trainer_endpoint)
                backs[peer].send_multipart(frames)
            for peer, back in backs.items():
                if back in ready:
                    self.front.send_multipart([peer, *back.recv_multipart()])
            with self.lock:
                target, frames = self.to_throw.pop(0) if self.to_throw and backs else (None, None)
            if target == "worker":
                self.front.send_multipart([list(backs)[-1], *frames])
                self.thrown[target] += 1
            elif target == "trainer":
                list(backs.values())[-1].send_multipart(frames)
                self.thrown[target] += 1
        for back in backs.values():
            back.close()
        self.front.close()
        self.context.term()

    def throw(self, target, messages):
        with self.lock:
            self.to_throw += [(target, frames) for frames in messages]

    def close(self):
        self.stop.set()
        self.thread.join()


class BadFrames(harness.Case):
    def test_malformed_frames_at_every_socket_leave_the_run_unharmed(self):
        source = f"tcp://127.0.0.1:{harness.free_port()}"
        trainer = self.start_trainer(
            tasks__count=400, tasks__group_size=2, tasks__open_per_worker=8, trainer__max_message_mb=1,
            checkpoints__publish=[harness.ARITH[v] for v in (1, 2, 3)], checkpoints__every_samples=200,
            checkpoints__tcp_bind=source, trainer__liveness_ms=int(500 * harness.options.slowness))
        proxy = Proxy(self.endpoint)
        self.addCleanup(proxy.close)
        worker = self.start_worker(trainer__endpoint=proxy.endpoint, trainer__max_message_mb=1)
        messages = malformed_messages(1 << 20)
        self.wait_until("the trainer listens", lambda: "listening on" in trainer.log(), alive=[trainer])
        # A stranger's own connections, to the trainer and to the server of weights.
        for endpoint in (self.endpoint, source):
            throw_tcp_garbage(endpoint)
            with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
                stranger.linger = 2000
                stranger.connect(endpoint)
                for frames in messages.values():
                    stranger.send_multipart(frames)
        # Amid the stream of the worker, in both directions, all the time.
        self.wait_until("first samples", lambda: len(self.lines()) > 20, alive=[trainer, worker])
        for _ in range(2):
            for target in ("worker", "trainer"):
                proxy.throw(target, messages.values())
        self.wait_until("all thrown", lambda: sum(proxy.thrown.values()) == 4 * len(messages), alive=[worker])
        self.expect_end(trainer, 0, seconds=90)
        self.assertEqual(worker.version(), 3)
        self.assertEqual(worker.terminate(), 0)
        self.check_exactly_once()
        self.check_log(self.folder / "worker-log")
        for process in (trainer, worker):
            for text in ("does not begin with 'WRPL'", "protocol version is 1, wanted 2", "checksum does not match",
                         "message type 999 is unknown", "message has 4 ZeroMQ frames, wanted 1",
                         "2000001 Cap'n Proto segments"):
                self.assertIn(text, process.log())


if __name__ == "__main__":
    harness.main()
