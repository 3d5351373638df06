// Publishes rows and receives them on one WebSocket of the web door.
//
//     node --experimental-websocket live.mjs http://127.0.0.1:7700 clicks      (node.js 22 or later needs no option)
//
// Works in a browser, too, if the origin of the page is in the node's web_origins. A WebSocket of a browser cannot send a token:
// where tokens are required, use tail.mjs and POST.

const [door, topic] = process.argv.slice(2);
const socket = new WebSocket(`${door.replace(/^http/, "ws")}/live`);
const send = (message) => socket.send(JSON.stringify(message));
const COUNT = 3;
let received = 0;
let acknowledged = 0;

socket.onopen = () => {
  send({ type: "subscribe", id: "rows", topic, from: "earliest", credit: 16 });
  for (let id = 1; id <= COUNT; id++) send({ type: "publish", id, topic, rows: [{ page: id }] });
};
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data);
  if (message.type === "refused") throw new Error(`${message.code}: ${message.detail}`);
  if (message.type === "acked") acknowledged = message.id;
  if (message.type === "rows") {
    for (const row of message.rows) console.log(`${row._sequence}: page ${row.page}`);
    received += message.rows.length;
    send({ type: "credit", id: "rows", frames: 1 });
  }
  if (received >= COUNT && acknowledged === COUNT) socket.close();
};
