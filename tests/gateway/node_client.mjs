// The official client for Node, used as anyone would; prints what it saw as one JSON document.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "sk-any", maxRetries: 0, timeout: 20_000 });
const messages = [{ role: "user", content: "What is 2 + 2? Größe 数 😀" }];
const tools = [{ type: "function", function: { name: "add", parameters: { type: "object" } } }];
const seen = {};

const answer = await client.chat.completions.create({ model, messages });
seen.chat = answer.choices[0].message.content;

seen.stream = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  seen.stream += chunk.choices[0]?.delta?.content ?? "";
}

const turns = [...messages];
for (;;) {
  const reply = await client.chat.completions.create({ model, messages: turns, tools });
  const said = reply.choices[0].message;
  turns.push(said);
  if (!said.tool_calls) break;
  for (const call of said.tool_calls) {
    turns.push({ role: "tool", tool_call_id: call.id, content: call.function.arguments });
  }
}
seen.agent = turns.map((turn) => turn.role);

try {
  await client.chat.completions.create({ model, messages, temperature: 0 });
} catch (error) {
  seen.error = [error.constructor.name, error.status, error.code];
}
console.log(JSON.stringify(seen));
