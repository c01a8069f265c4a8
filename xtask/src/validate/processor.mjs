// Serves Perfetto's trace processor (the WebAssembly build of its UI) over HTTP with the API of the native one, so that the `perfetto`
// Python package can query it.
//
//   node processor.mjs FOLDER    FOLDER has engine_bundle.js and trace_processor.wasm; prints the port it serves on
//
// The bundle is a Web Worker: provide the few worker globals that it uses, and a MessagePort.
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import vm from 'node:vm';

const folder = process.argv[2];
const beside = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));

Object.assign(globalThis, {
  self: globalThis,
  location: { href: `file://${folder}/engine_bundle.js`, search: '' },
  importScripts() {},
  WorkerGlobalScope: function WorkerGlobalScope() {},
  postMessage() {},
  async fetch(url) {
    return new Response(beside(url), { headers: { 'content-type': 'application/wasm' } });
  },
  XMLHttpRequest: class {
    open(_method, url) {
      this.url = url;
    }
    send() {
      this.response = beside(this.url);
      this.status = 200;
    }
  },
});

// Hide `process`, so that the bundle assumes a browser.
const node = globalThis.process;
globalThis.process = undefined;
vm.runInThisContext(String(beside('engine_bundle.js')), { filename: 'engine_bundle.js' });
globalThis.process = node;

// ---- protobuf: the subset used by the processor's RPC stream

const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;

function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    const low = Number(rest & 0x7fn);
    if (rest < 0x80n) return Buffer.from([...bytes, low]);
    bytes.push(low | 0x80);
  }
}

const integer = (field, value) => Buffer.concat([varint((field << 3) | VARINT), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | BYTES), varint(value.length), value]);

function readVarint(buffer, at) {
  let [value, shift] = [0n, 0n];
  while (at < buffer.length) {
    const byte = buffer[at++];
    value |= BigInt(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return [Number(value), at];
    shift += 7n;
  }
  return undefined;
}

/** The fields of a message: [number, integer or bytes]. */
function fields(buffer) {
  const found = [];
  for (let at = 0; at < buffer.length; ) {
    const [key, next] = readVarint(buffer, at);
    const wire = key & 7;
    if (wire === VARINT) {
      const [value, end] = readVarint(buffer, next);
      found.push([key >> 3, value]);
      at = end;
    } else if (wire === BYTES) {
      const [length, from] = readVarint(buffer, next);
      found.push([key >> 3, buffer.subarray(from, from + length)]);
      at = from + length;
    } else {
      at = next + (wire === FIXED64 ? 8 : 4);
    }
  }
  return found;
}

// ---- TraceProcessorRpc: responses arrive in the order of the requests

const METHOD = { parse: 1, eof: 2, query: 3, status: 10 };
const QUERY_RESULT = 203;
const waiting = [];
let sequence = 0;
let unread = Buffer.alloc(0);

const port = {
  onmessage: null,
  postMessage(data) {
    unread = Buffer.concat([unread, Buffer.from(data)]);
    for (;;) {
      const key = readVarint(unread, 0);
      const length = key && readVarint(unread, key[1]);
      if (!length || length[1] + length[0] > unread.length) return;
      const end = length[1] + length[0];
      answer(fields(unread.subarray(length[1], end)));
      unread = unread.subarray(end);
    }
  },
};

function answer(message) {
  const asked = waiting[0];
  if (!asked) return;
  let complete = true;
  for (const [field, value] of message) {
    if (field === QUERY_RESULT) {
      asked.parts.push(value);
      // A result arrives in batches. It ends with an error, or with a batch that is marked as the last.
      complete = fields(value).some(
        ([of, inner]) => of === 2 || (of === 3 && fields(inner).some(([flag, set]) => flag === 6 && set)),
      );
    } else if (field > 3) {
      asked.parts.push(value);
    }
  }
  if (complete) waiting.shift().resolve(Buffer.concat(asked.parts.filter(Buffer.isBuffer)));
}

function ask(method, body) {
  return new Promise((resolve) => {
    waiting.push({ resolve, parts: [] });
    const request = Buffer.concat([integer(1, sequence++), integer(2, method), body ?? Buffer.alloc(0)]);
    port.onmessage({ data: new Uint8Array(bytes(1, request)) });
  });
}

globalThis.onmessage({ data: port, ports: [] });

const routes = {
  '/parse': (body) => ask(METHOD.parse, bytes(101, body)),
  '/notify_eof': () => ask(METHOD.eof),
  '/query': (body) => ask(METHOD.query, bytes(103, body)),
  '/status': () => ask(METHOD.status),
};

const server = http.createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', async () => {
    const route = routes[request.url];
    if (!route) return response.writeHead(404).end();
    response.writeHead(200).end(await route(Buffer.concat(parts)));
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
