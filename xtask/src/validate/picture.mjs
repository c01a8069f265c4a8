// Takes a screenshot of a trace in Perfetto's UI: serves the UI's files on loopback, and controls a headless Chromium over a pipe.
//
//   node picture.mjs UI TRACE PICTURE.png     UI is the folder with Perfetto's index.html
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';

const [ui, trace, picture] = process.argv.slice(2);
const TYPES = {
  '.css': 'text/css',
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.json': 'application/json',
  '.png': 'image/png',
  '.wasm': 'application/wasm',
  '.woff2': 'font/woff2',
};
const SIZE = { width: 1600, height: 1000 };
const PATIENCE_MS = 60_000;

const server = http.createServer((request, response) => {
  const asked = decodeURIComponent(new URL(request.url, 'http://ui').pathname);
  const file = asked === '/trace.json' ? trace : path.join(ui, asked === '/' ? 'index.html' : path.normalize(asked));
  fs.readFile(file, (error, content) => {
    if (error) return response.writeHead(404).end();
    response.writeHead(200, { 'content-type': TYPES[path.extname(file)] ?? 'application/octet-stream' }).end(content);
  });
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const origin = `http://127.0.0.1:${server.address().port}`;

const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'tokengap-picture-'));
const chromium = spawn(
  'chromium',
  ['--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', `--user-data-dir=${profile}`, '--remote-debugging-pipe'],
  { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] },
);
chromium.on('error', (error) => {
  console.error(`cannot run chromium (Debian: apt-get install chromium): ${error.message}`);
  process.exit(1);
});

// The DevTools protocol: JSON messages that end with a zero byte.
const waiting = new Map();
let [asked, unread] = [0, ''];
chromium.stdio[4].on('data', (data) => {
  unread += data;
  const messages = unread.split('\0');
  unread = messages.pop();
  for (const message of messages.map((text) => JSON.parse(text))) {
    const answer = waiting.get(message.id);
    waiting.delete(message.id);
    if (message.error) answer?.reject(new Error(message.error.message));
    else answer?.resolve(message.result);
  }
});
function tell(method, params = {}, sessionId = undefined) {
  const id = ++asked;
  chromium.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

try {
  const { targetId } = await tell('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await tell('Target.attachToTarget', { targetId, flatten: true });
  const page = (method, params) => tell(method, params, sessionId);
  await page('Emulation.setDeviceMetricsOverride', { ...SIZE, deviceScaleFactor: 1, mobile: false });
  const commands = [
    { id: 'dev.perfetto.ExpandTracksByRegex', args: ['^(tokengap|hops|requests|scheduler|tokenizer)'] },
  ];
  const startup = encodeURIComponent(JSON.stringify(commands));
  await page('Page.navigate', { url: `${origin}/#!/?url=${encodeURIComponent(`${origin}/trace.json`)}&startupCommands=${startup}` });
  const text = async () => (await page('Runtime.evaluate', { expression: 'document.body.innerText' })).result?.value ?? '';
  const until = Date.now() + PATIENCE_MS;
  while (!(await text()).includes('backlog')) {
    if (Date.now() > until) throw new Error('the trace does not appear in the UI');
    await pause(250);
  }
  // Tracks are drawn as their data arrives.
  await pause(4_000);
  const { data } = await page('Page.captureScreenshot', { format: 'png' });
  fs.writeFileSync(picture, Buffer.from(data, 'base64'));
  console.log(`${picture} written`);
} finally {
  chromium.kill();
  server.close();
  await pause(500);
  fs.rmSync(profile, { recursive: true, force: true });
}
