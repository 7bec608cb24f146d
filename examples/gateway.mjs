// Sends and receives over HTTP with fetch alone, without a client of vq: Node 18 or later, Deno, Bun, browsers.
//
//   vq gateway                                      # in a terminal of its own
//   vq topic create web-chat
//   node examples/gateway.mjs web-chat 3

const [topic = "web-chat", count = "3"] = process.argv.slice(2);
const base = process.env.VQ_GATEWAY_URL ?? "http://127.0.0.1:8125";
const headers = { "Content-Type": "application/json" };
if (process.env.VQ_GATEWAY_TOKEN) headers.Authorization = `Bearer ${process.env.VQ_GATEWAY_TOKEN}`;

class Problem extends Error {
  constructor(problem, retryAfter) {
    super(`${problem.code}: ${problem.detail} (${problem.outcome})`);
    Object.assign(this, { problem, retryAfter });
  }
}

// One request. What is refused and may be tried again, as while the cluster is busy, is tried again.
async function call(method, path, body) {
  for (let tries = 1; ; tries++) {
    const answer = await fetch(base + path, { method, headers, body: body && JSON.stringify(body) });
    if (answer.status === 204) return null;
    const value = await answer.json();
    if (answer.ok) return value;
    const after = Number(answer.headers.get("Retry-After"));
    if (!after || value.outcome !== "refused" || tries === 5) throw new Problem(value, after);
    await new Promise((resolve) => setTimeout(resolve, after * 1000));
  }
}

const consumer = await call("POST", "/v1/consumers", {
  group: `${topic}-readers`,
  subscriptions: [{ topic }],
});
const here = `/v1/consumers/${consumer.consumer}`;
try {
  const messages = Array.from({ length: Number(count) }, (_, number) => ({
    topic,
    key: "anna",
    json: { number, text: `grüß dich ${number}` },
  }));
  const { results } = await call("POST", "/v1/messages", { messages });
  console.log(`stored ${results.length} messages`);

  let received = 0;
  while (received < results.length) {
    const answer = await call("GET", `${here}/messages?wait=20&content=json`);
    for (const message of answer.messages) console.log(`received ${message.json.text}`);
    if (answer.commit.length) await call("POST", `${here}/commits`, { positions: answer.commit });
    received += answer.messages.length;
  }
} finally {
  await call("DELETE", here); // others get its partitions at once, not when its lease ends
}
