#!/usr/bin/env python3
"""A small etcd: the calls of its v3 JSON gateway that dlaunch uses. Prints its port. SIGUSR1: all leases end. SIGUSR2:
it has lost its data, as if it had been started again in an empty folder.

    etcd.py [PORT]      PORT 0, the default: a free one
"""
import http.server
import json
import signal
import sys
import threading
import time

lock = threading.RLock()
keys = {}    # key -> (value, lease)
leases = {}  # lease -> [seconds, when it ends]
revision = [1]  # of the data


def end_lease(lease):
    leases.pop(lease, None)
    for key in [k for k, (_, of) in keys.items() if of == lease]:
        del keys[key]
        revision[0] += 1


def forget():
    with lock:
        keys.clear()
        leases.clear()
        revision[0] = 1


def end_leases(over=lambda end: True):
    with lock:
        for lease in [i for i, (_, end) in leases.items() if over(end)]:
            end_lease(lease)


def grant(q):
    lease, ttl = str(100 + len(keys) + time.monotonic_ns()), int(q["TTL"])
    leases[lease] = [ttl, time.monotonic() + ttl]
    return {"ID": lease, "TTL": str(ttl)}


def keep_alive(q):
    lease = leases.get(q["ID"])
    if not lease:
        return {"result": {"ID": q["ID"]}}
    lease[1] = time.monotonic() + lease[0]
    return {"result": {"ID": q["ID"], "TTL": str(lease[0])}}


def revoke(q):
    end_lease(q["ID"])
    return {}


def read(q):
    found = keys.get(q["key"])
    return {"kvs": [{"key": q["key"], "value": found[0]}], "count": "1"} if found else {}


def transact(q):
    compare = q["compare"][0]
    found = keys.get(compare["key"])
    holds = found is None if compare["target"] == "CREATE" else found is not None and found[0] == compare["value"]
    if holds and any(int(s.get("requestPut", {}).get("lease", 0)) and s["requestPut"]["lease"] not in leases
                     for s in q["success"]):
        return {"error": "etcdserver: requested lease not found", "code": 5}
    revision[0] += bool(holds and q["success"])
    for step in q["success"] if holds else []:
        if "requestPut" in step:
            put = step["requestPut"]
            keys[put["key"]] = (put["value"], put["lease"])
        else:
            keys.pop(step["requestDeleteRange"]["key"], None)
    return {"succeeded": True} if holds else {}


CALLS = {"/v3/lease/grant": grant, "/v3/lease/keepalive": keep_alive, "/v3/lease/revoke": revoke,
         "/v3/kv/range": read, "/v3/kv/txn": transact}


class Gateway(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        end_leases(lambda end: end < time.monotonic())
        with lock:
            answer = CALLS[self.path](q)
            header = {"header": {"revision": str(revision[0])}}
            answer.get("result", answer).update(header)
            status = 404 if "error" in answer else 200
            answer = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer)
        self.close_connection = True


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Gateway)
signal.signal(signal.SIGUSR1, lambda *_: end_leases())
signal.signal(signal.SIGUSR2, lambda *_: forget())
print("port", server.server_address[1], flush=True)
server.serve_forever()
