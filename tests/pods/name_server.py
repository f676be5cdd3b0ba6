"""A cluster's name server: name_server.py ADDRESS FILE. FILE is {name: [address, since]}, read at each question."""
import json
import socket
import struct
import sys
import time


def answer(question, names):
    """The reply to a question of one name: an address, or NXDOMAIN."""
    number, flags, at, labels = *struct.unpack(">HH", question[:4]), 12, []
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode("ascii", "replace"))
        at += 1 + question[at]
    kind, _ = struct.unpack(">HH", question[at + 1:at + 5])
    address, since = names.get(".".join(labels).lower(), (None, 0))
    there = address is not None and time.time() >= since
    record = b""
    if there and kind == 1:
        record = struct.pack(">HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address)
    return struct.pack(">HHHHHH", number, 0x8180 | (flags & 0x0100) | (0 if there else 3), 1, bool(record), 0, 0) + \
        question[12:at + 5] + record


def main():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((sys.argv[1], 53))
    print("ready", flush=True)
    while True:
        question, peer = server.recvfrom(4096)
        try:
            with open(sys.argv[2]) as f:
                names = json.load(f)
            server.sendto(answer(question, names), peer)
        except (IndexError, struct.error):
            pass  # not a question


main()
