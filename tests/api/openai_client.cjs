// One session with OpenAI's client for Node: node openai_client.cjs URL KEY. Prints what came of each step as JSON.

const OpenAI = require("openai");

const [url, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const chats = client.chat.completions;
const ask = { model: "m", messages: [{ role: "user", content: "Hi" }], temperature: 0, max_tokens: 12 };
const endless = { ...ask, max_tokens: 4000, ignore_eos: true };
const schema = {
  type: "object",
  properties: { a: { type: "boolean" } },
  required: ["a"],
  additionalProperties: false,
};

async function failure(promise) {
  try {
    await promise;
    return "no error";
  } catch (error) {
    return { name: error.constructor.name, status: error.status, type: error.type, message: error.message };
  }
}

async function streamed() {
  const stream = await chats.create({ ...ask, stream: true, stream_options: { include_usage: true } });
  const texts = [];
  let usage = null;
  for await (const chunk of stream) {
    texts.push(chunk.choices[0]?.delta.content ?? "");
    usage = chunk.usage ?? usage;
  }
  return { text: texts.join(""), tokens: usage.completion_tokens };
}

async function abortedStream() {
  const stream = await chats.create({ ...endless, stream: true });
  let n = 0;
  for await (const _ of stream) if (++n === 3) stream.controller.abort();
  return n;
}

async function abortedAnswer() {
  const controller = new AbortController();
  const answer = failure(chats.create(endless, { signal: controller.signal }));
  while (!(await busy())) await new Promise((resolve) => setTimeout(resolve, 5));
  controller.abort();
  return answer;
}

async function busy() {
  const slots = await client.get(`${url}/slots`);
  return slots.some((slot) => slot.is_processing);
}

async function main() {
  const whole = await chats.create(ask);
  const helper = chats.stream(ask);
  const results = {
    models: (await client.models.list()).data.map((model) => model.object),
    chat: whole.choices[0].message,
    usage: whole.usage,
    streamed: await streamed(),
    helper: await helper.finalContent(),
    logprobs: (await chats.create({ ...ask, logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content.length,
    json: JSON.parse(
      (await chats.create({
        ...ask,
        max_tokens: 60,
        response_format: { type: "json_schema", json_schema: { name: "s", strict: true, schema } },
      })).choices[0].message.content,
    ),
    abortedStream: await abortedStream(),
    abortedAnswer: await abortedAnswer(),
    badField: await failure(chats.create({ ...ask, temperature: 1e6 })),
    tooLong: await failure(client.completions.create({ model: "m", prompt: "a".repeat(5000) })),
    badPath: await failure(client.get("/nothing")),
    badKey: await failure(new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 }).models.list()),
  };
  console.log(JSON.stringify(results));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
