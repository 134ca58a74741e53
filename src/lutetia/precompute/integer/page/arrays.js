// The tables of the page: whole numbers in base64, as typed arrays.

const KINDS = { i1: Int8Array, i2: Int16Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };
const byId = (id) => document.getElementById(id);
const model = unpacked(JSON.parse(byId("model").textContent));

function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== "object") return value;
  if (value.base64 === undefined) return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, unpacked(each)]));
  const bytes = Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
  return new KINDS[value.kind](bytes.buffer);
}

function refuse(message) {
  throw new RangeError(message);
}
