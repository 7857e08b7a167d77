// Requests to the node that served the page, with the token that the user gave.

const TOKEN = "tailrace.token";

export class ApiError extends Error {
  constructor(status, name, message) {
    super(message);
    this.status = status;
    this.name = name;
  }
}

export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

// Asks for JSON. Raises ApiError; its status is 0 if the node has not answered.
export async function ask(path, body = null) {
  const headers = token() ? { authorization: `Bearer ${token()}` } : {};
  const options = { headers, cache: "no-store" };
  if (body !== null) Object.assign(options, { method: "POST", body: JSON.stringify(body), headers: { ...headers, "content-type": "application/json" } });
  let answer;
  try {
    answer = await fetch(`/api/${path}`, { ...options, signal: AbortSignal.timeout(30000) });
  } catch {
    throw new ApiError(0, "Unreachable", "the node does not answer: it has stopped, or the network is cut");
  }
  const said = await answer.text();
  let value = null;
  try {
    value = JSON.parse(said);
  } catch {
    throw new ApiError(answer.status, "Error", said.slice(0, 300) || `the node answers ${answer.status}`);
  }
  if (!answer.ok) throw new ApiError(answer.status, value.error ?? "Error", value.message ?? `the node answers ${answer.status}`);
  return value;
}

// Opens a WebSocket. A browser cannot set its headers, so the token is one more subprotocol; it is never in a URL.
export function openSocket(path, protocol) {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const protocols = token() ? [protocol, `tailrace.token.${token()}`] : [protocol];
  return new WebSocket(`${scheme}//${location.host}/api/${path}`, protocols);
}

// Closes a socket of openSocket, one that is still connecting too: to close that at once is an error in the browser's log.
export function closeSocket(socket) {
  if (socket.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close();
  else socket.close();
}
