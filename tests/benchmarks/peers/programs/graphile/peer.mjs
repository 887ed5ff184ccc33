// graphile-worker as a peer: `node peer.mjs VERB '{"json": "options"}'`; see ../../program.py for what each verb does.
import { openSync, writeSync } from "node:fs";
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";

const nowUs = () => (performance.timeOrigin + performance.now()) * 1000;
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
const [verb, text] = process.argv.slice(2);
const options = JSON.parse(text);
const preset = { worker: { connectionString: options.address, logger, ...options.worker } };
const RECORD = 32; // four little-endian doubles: key, number in its key, stamp, start
const CHUNK = 10_000;

function recorder(path) {
  const file = openSync(path, "a");
  const buffer = Buffer.alloc(RECORD * 200_000);
  let used = 0;
  setInterval(() => {
    if (used > 0) writeSync(file, buffer, 0, used);
    used = 0;
  }, 10);
  return ({ key, number, stamp }) => {
    const start = nowUs();
    for (const value of [key, number, stamp, start]) used = buffer.writeDoubleLE(value, used);
  };
}

function job(key, number, stamp, due) {
  return {
    identifier: "noop",
    payload: { key, number, stamp },
    queueName: options.keys ? `key-${key}` : undefined,
    runAt: due ? new Date(due / 1000) : undefined,
  };
}

async function enqueue() {
  const utils = await makeWorkerUtils({ preset });
  await utils.withPgClient((client) => client.query("select 1"));
  const { count, keys, first_due_us: firstDue, period_us: period } = options;
  const begin = performance.now();
  for (let from = 0; from < count; from += CHUNK) {
    const jobs = [];
    for (let index = from; index < Math.min(from + CHUNK, count); index++) {
      const due = firstDue ? firstDue + index * period : 0;
      jobs.push(job(keys ? index % keys : 0, keys ? Math.floor(index / keys) : index, due, due));
    }
    await utils.addJobs(jobs);
  }
  const seconds = (performance.now() - begin) / 1000;
  await utils.release();
  return { seconds };
}

async function send() {
  const utils = await makeWorkerUtils({ preset });
  await utils.withPgClient((client) => client.query("select 1"));
  const begin = performance.now();
  for (let index = 0; index < options.count; index++) {
    await new Promise((resolve) => setTimeout(resolve, begin + (index * 1000) / options.rate - performance.now()));
    const { identifier, payload } = job(0, index, nowUs(), 0);
    await utils.addJob(identifier, payload);
  }
  await utils.release();
  return { seconds: (performance.now() - begin) / 1000 };
}

async function work() {
  const record = recorder(options.records);
  const runner = await run({ preset, taskList: { noop: (payload) => record(payload) }, crontab: "" });
  await runner.promise;
  process.exit(0);
}

const verbs = { prepare: () => runMigrations({ preset }), enqueue, send, work };
const answer = await verbs[verb]();
console.log(JSON.stringify(answer ?? {}));
