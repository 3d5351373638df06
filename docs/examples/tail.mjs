// Follows a topic through the web door: prints rows as they arrive, each once, through lost connections.
//
//     node tail.mjs http://127.0.0.1:7700 orders [count]
//
// M4CAST_TOKEN is sent, if it is set. In a browser, the origin of the page has to be in the node's web_origins.

const [door, topic, count = Infinity] = process.argv.slice(2);
const headers = process.env.M4CAST_TOKEN ? { Authorization: `Bearer ${process.env.M4CAST_TOKEN}` } : {};

async function* events(lastId) {
  const resume = lastId ? { "Last-Event-ID": lastId } : {};
  const url = `${door}/topics/${encodeURIComponent(topic)}/tail?from=earliest`;
  const answer = await fetch(url, { headers: { ...headers, ...resume } });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  let text = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const fields = text.slice(0, end).split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]);
      yield Object.fromEntries(fields);
    }
  }
}

let lastId;
let seen = 0;
while (seen < count) {
  try {
    for await (const event of events(lastId)) {
      if (event.event === "refused") throw new Error(event.data);
      lastId = event.id ?? lastId;
      if (event.data) console.log(JSON.stringify(JSON.parse(event.data)));
      if (event.data && ++seen >= count) process.exit(0);
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // fetch reports a lost connection as a TypeError
  }
  await new Promise((resolve) => setTimeout(resolve, 1000));
}
