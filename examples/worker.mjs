// A worker in plain Node, 18 or newer, without packages:  node worker.mjs http://127.0.0.1:8080 gpu 4
// One conversation: each call keeps all leases alive, brings results, and waits for work. SIGTERM and Ctrl-C stop it gracefully.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const [url, queue, slots = "4"] = process.argv.slice(2);
const path = `${url}/v1/workers/${hostname()}-${process.pid}-js`, session = randomUUID(), grace = 10_000;
const held = new Map(); // lease → { stop, beat } of all leases whose end the server has not recorded; symbol → the same of what has none
const ended = new Map(); // lease → how it ended, until the server has taken that
let seq = 0, listing = false, singly = false, stopAt = Infinity, wake = () => {};

async function handle(task, signal) { // your work; `signal` aborts when the task is cancelled, or the lease lost
  await sleep(task.payload.ms ?? 0, undefined, { signal });
  return { doubled: 2 * (task.payload.n ?? 0) };
}

async function work({ lease, beat_every_ms, task }) {
  const stop = new AbortController(), key = lease || Symbol(); // without one the task has ended with being handed over: it takes a slot only
  held.set(key, { stop, beat: lease ? beat_every_ms : Infinity });
  let end = { lease, outcome: "succeeded" };
  try { end.result = await handle(task, stop.signal); }
  catch (error) { end = { lease, outcome: "failed", error: { code: error.name, description: error.message, stack: error.stack } }; }
  if (!lease) held.delete(key);
  else if (held.has(lease)) ended.set(lease, end); // otherwise it was lost meanwhile: somebody else does it
  wake();
}

function take(answer) {
  for (const { lease, status } of answer.accepted) {
    if (status !== "unavailable") { held.delete(lease); ended.delete(lease); }
    if (!["ok", "unavailable"].includes(status)) console.error(`${status}: a result came to nothing`);
  }
  for (const lease of answer.lost) { // cancelled ones are among them
    held.get(lease)?.stop.abort(); held.delete(lease); ended.delete(lease);
  }
  const told = new Set(answer.commands.map(({ type }) => type));
  listing ||= told.has("list_leases");
  if (told.has("stop")) stopAt = 0; // an operator says so: give back what is held, and end
  else if (told.has("drain") && stopAt === Infinity) stopAt = Number.MAX_SAFE_INTEGER; // … or finish it, and end
  answer.leases.forEach(work);
}

function refused({ results }, why) { // one result is to blame: they go one by one, and that one as failed; false: even that is refused
  singly = results.length > 0;
  if (results.length !== 1) return singly;
  const [{ lease, error }] = results; ended.set(lease, { lease, outcome: "failed", error: { code: "report_refused", description: why } });
  return error?.code !== "report_refused";
}

async function call(body) { // until it is answered: the same seq gets the same answer, so nothing is lost or done twice
  for (let pause = 100; ; pause = Math.min(2 * pause, 2_000)) {
    const headers = { "Content-Type": "application/json" }; // and Authorization: `Bearer ${token}`, where tokens are asked for
    const reply = await fetch(`${path}/sync`, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
    const said = await reply?.json().catch(() => null), problem = said ?? {}; // cut off in its middle, it is no answer
    if (reply?.ok && said) return take(said);
    if (/superseded|sequence-out-of-order/.test(problem.type)) return; // a later call has taken its place
    if ([400, 413, 422].includes(reply?.status) && refused(body, `${problem.title}: ${problem.detail}`)) return;
    if (reply?.ok === false && reply.status < 500 && ![408, 429].includes(reply.status)) throw new Error(`${problem.title}: ${problem.detail}`);
    await sleep(pause * (0.5 + Math.random() / 2));
  }
}

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => { stopAt = Date.now() + grace; wake(); });
while ((held.size || stopAt === Infinity) && Date.now() < stopAt) {
  singly &&= ended.size > 0;
  const results = [...ended.values()].slice(0, singly ? 1 : 100);
  const kept = [...held.keys()].filter((lease) => typeof lease === "string" && !results.some((result) => result.lease === lease));
  const digest = kept.reduce((sum, lease) => (sum ^ parseInt(lease.slice(-8), 16)) >>> 0, 0).toString(16).padStart(8, "0");
  const mine = listing ? { count: kept.length, leases: kept } : { count: kept.length, digest };
  const free = stopAt === Infinity ? Math.max(0, slots - held.size + ended.size) : 0;
  const wait_ms = Math.min(20_000, stopAt - Date.now(), ...[...held.values()].map(({ beat }) => beat));
  const woken = new Promise((resolve) => { wake = resolve; });
  const first = results.length || listing; listing = false; // nothing may overtake what says something
  const answered = call({ seq: ++seq, session, wait_ms: Math.max(0, wait_ms), want: [{ queue, max: free }], held: mine, results });
  answered.catch((error) => { console.error(error.message); process.exit(1); });
  await (first ? answered : Promise.race([answered, woken])); // a result does not wait for the call that waits for work
}
await fetch(`${path}?session=${session}`, { method: "DELETE" }); // what is still held goes to others at once
process.exit(0);
