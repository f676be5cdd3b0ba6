"""The Trainer's status server: status_server.py ADDRESS CERTIFICATE KEY FILE. Appends each request to FILE as a line of
JSON: path, authorization, body."""
import http.server
import json
import ssl
import sys

ADDRESS, CERTIFICATE, KEY, FILE = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(FILE, "a") as f:
            f.write(json.dumps({"path": self.path, "token": self.headers["Authorization"], "body": body}) + "\n")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer((ADDRESS, 8082), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
server.handle_error = lambda *_: None  # who does not trust the certificate leaves
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", flush=True)
server.serve_forever()
