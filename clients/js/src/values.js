// Avro values in the gateway's JSON form: records are {type, data} at every depth, bytes are base64, times are text.
// So a subscription gives the same values whether it is sent as JSON or as Avro.
import avro from "avsc/etc/browser/avsc-types.js";

// avsc works on Node's Buffer. In browsers the bundle brings one, which avsc's own buffers are instances of. It is looked
// up here, because avsc can't encode anything else while it encodes a value.
const Bytes = avro.Type.forSchema("null").toBuffer(null).constructor;

// Whole numbers beyond 2^53 become BigInt; others stay numbers.
const long = avro.types.LongType.__with({
  fromBuffer: (buffer) => small(viewOf(buffer).getBigInt64(0, true)),
  toBuffer: (value) => {
    const buffer = Bytes.alloc(8);
    viewOf(buffer).setBigInt64(0, BigInt(value), true);
    return buffer;
  },
  fromJSON: (value) => value,
  toJSON: (value) => value,
  isValid: (value) => typeof value === "bigint" || Number.isSafeInteger(value),
  compare: (one, other) => (one < other ? -1 : one > other ? 1 : 0),
});

/** Encodes and decodes values of one schema. */
export class AvroCodec {
  constructor(schemaText) {
    this.schema = JSON.parse(schemaText);
    this.names = new Map();
    collectNames(this.schema, null, this.names);
    this.type = avro.Type.forSchema(withoutLogical(this.schema), {
      wrapUnions: true,
      registry: { long },
    });
  }

  /** The full name of the type, or the name of a primitive one. */
  get name() {
    return this.type.name ?? this.type.typeName;
  }

  /** Decodes bytes into the JSON form. */
  decode(bytes) {
    const buffer = bufferOf(bytes);
    return toJson(this.schema, this.type.fromBuffer(buffer), this.names, null);
  }

  /** Encodes a value in the JSON form; a record may also be the plain object of its fields. */
  encode(value) {
    const encoded = this.type.toBuffer(fromJson(this.schema, value, this.names, null));
    return new Uint8Array(encoded.buffer, encoded.byteOffset, encoded.byteLength);
  }
}

function bufferOf(bytes) {
  return Bytes.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function viewOf(buffer) {
  return new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

function small(number) {
  return number >= Number.MIN_SAFE_INTEGER && number <= Number.MAX_SAFE_INTEGER ? Number(number) : number;
}

const PRIMITIVES = new Set(["null", "boolean", "int", "long", "float", "double", "bytes", "string"]);
const NAMED = new Set(["record", "enum", "fixed", "error"]);

function fullName(name, namespace) {
  return name.includes(".") || !namespace ? name : `${namespace}.${name}`;
}

function nameOf(schema, namespace) {
  return fullName(schema.name, schema.namespace ?? namespace);
}

function spaceOf(name) {
  return name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : null;
}

function collectNames(schema, namespace, names) {
  if (Array.isArray(schema)) schema.forEach((each) => collectNames(each, namespace, names));
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) return;
  if (NAMED.has(schema.type)) {
    const name = nameOf(schema, namespace);
    names.set(name, { schema, namespace: spaceOf(name) });
    (schema.fields ?? []).forEach((field) => collectNames(field.type, spaceOf(name), names));
  } else {
    for (const inner of [schema.type, schema.items, schema.values]) collectNames(inner, namespace, names);
  }
}

/** The schema without logical types, which this module renders itself. */
function withoutLogical(schema) {
  if (Array.isArray(schema)) return schema.map(withoutLogical);
  if (schema === null || typeof schema !== "object") return schema;
  const { logicalType: _logical, ...plain } = schema;
  return Object.fromEntries(
    Object.entries(plain).map(([name, value]) => [name, name === "default" ? value : withoutLogical(value)]),
  );
}

/** The definition that a schema stands for: names are looked up, and {type: …} around one is taken off. */
function resolve(schema, names, namespace) {
  if (typeof schema === "string" && !PRIMITIVES.has(schema)) {
    const found = names.get(fullName(schema, namespace)) ?? names.get(schema);
    if (!found) throw new TypeError(`the schema names ${schema} and does not define it`);
    return found;
  }
  if (typeof schema === "string") return { schema: { type: schema }, namespace };
  if (Array.isArray(schema)) return { schema, namespace };
  if (NAMED.has(schema.type)) return { schema, namespace: spaceOf(nameOf(schema, namespace)) };
  if (typeof schema.type === "object" || !(PRIMITIVES.has(schema.type) || ["array", "map"].includes(schema.type))) {
    return resolve(schema.type, names, namespace);
  }
  return { schema, namespace };
}

function branchName(given, names, namespace) {
  const { schema, namespace: inner } = resolve(given, names, namespace);
  return NAMED.has(schema.type) ? fullName(schema.name, schema.namespace ?? inner) : schema.type;
}

function isOptional(union) {
  return union.length === 2 && union.includes("null");
}

function toJson(given, datum, names, outer) {
  const { schema, namespace } = resolve(given, names, outer);
  if (Array.isArray(schema)) return unionToJson(schema, datum, names, namespace);
  switch (schema.type) {
    case "record": {
      const fields = schema.fields.map(({ name, type }) => [name, toJson(type, datum[name], names, namespace)]);
      return { type: fullName(schema.name, namespace), data: Object.fromEntries(fields) };
    }
    case "array":
      return datum.map((each) => toJson(schema.items, each, names, namespace));
    case "map":
      return Object.fromEntries(Object.entries(datum).map(([k, v]) => [k, toJson(schema.values, v, names, namespace)]));
    case "enum":
      return datum;
    default:
      return primitiveToJson(schema, datum);
  }
}

function unionToJson(union, datum, names, namespace) {
  if (datum === null) return null;
  const [name] = Object.keys(datum);
  const branch = union.find((each) => branchName(each, names, namespace) === name);
  const shown = toJson(branch, datum[name], names, namespace);
  const isRecord = resolve(branch, names, namespace).schema.type === "record";
  return isOptional(union) || isRecord ? shown : { type: name, data: shown };
}

function primitiveToJson(schema, datum) {
  const logical = LOGICAL[schema.logicalType];
  if (logical) return logical.toJson(datum, schema);
  if (schema.type === "bytes" || schema.type === "fixed") return toBase64(datum);
  if ((schema.type === "double" || schema.type === "float") && !Number.isFinite(datum)) return String(datum);
  return datum;
}

function fromJson(given, value, names, outer) {
  const { schema, namespace } = resolve(given, names, outer);
  if (Array.isArray(schema)) return unionFromJson(schema, value, names, namespace);
  switch (schema.type) {
    case "record": {
      const name = fullName(schema.name, namespace);
      const fields = value !== null && value.type === name && typeof value.data === "object" ? value.data : value;
      return Object.fromEntries(
        schema.fields
          .filter((field) => fields[field.name] !== undefined || !("default" in field))
          .map((field) => [field.name, fromJson(field.type, fields[field.name], names, namespace)]),
      );
    }
    case "array":
      return value.map((each) => fromJson(schema.items, each, names, namespace));
    case "map":
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, fromJson(schema.values, v, names, namespace)]));
    case "enum":
      return value;
    default:
      return primitiveFromJson(schema, value);
  }
}

function unionFromJson(union, value, names, namespace) {
  if (value === null || value === undefined) return null;
  const branches = union.filter((each) => each !== "null");
  const named = branches.find((each) => branchName(each, names, namespace) === value.type);
  const branch = branches.length === 1 ? branches[0] : named;
  if (!branch) throw new TypeError(`a value of this union is {type, data}, with a type of ${JSON.stringify(union)}`);
  const name = branchName(branch, names, namespace);
  const isRecord = resolve(branch, names, namespace).schema.type === "record";
  const inner = branches.length === 1 || isRecord ? value : value.data;
  return { [name]: fromJson(branch, inner, names, namespace) };
}

function primitiveFromJson(schema, value) {
  const logical = LOGICAL[schema.logicalType];
  if (logical) return logical.fromJson(value, schema);
  if (schema.type === "bytes" || schema.type === "fixed") return Bytes.from(value, "base64");
  if ((schema.type === "double" || schema.type === "float") && typeof value === "string") return Number(value);
  return value;
}

function toBase64(buffer) {
  return Bytes.from(buffer).toString("base64");
}

// Logical types, as Python writes them: ISO 8601 with microseconds only where there are some, decimals as digits.
const LOGICAL = {
  uuid: { toJson: (datum) => datum, fromJson: (value) => value },
  decimal: {
    toJson: (datum, { scale = 0 }) => decimalText(signedOf(datum), scale),
    fromJson: (value, { scale = 0, type, size }) => bufferOfSigned(unscaled(value, scale), type === "fixed" ? size : null),
  },
  date: {
    toJson: (datum) => new Date(datum * 86_400_000).toISOString().slice(0, 10),
    fromJson: (value) => Math.round(Date.parse(`${value}T00:00:00Z`) / 86_400_000),
  },
  "time-millis": { toJson: (datum) => timeText(BigInt(datum) * 1000n), fromJson: (value) => Number(microsOfTime(value) / 1000n) },
  "time-micros": { toJson: (datum) => timeText(BigInt(datum)), fromJson: (value) => small(microsOfTime(value)) },
  "timestamp-millis": moments(1000n, "+00:00"),
  "timestamp-micros": moments(1n, "+00:00"),
  "local-timestamp-millis": moments(1000n, ""),
  "local-timestamp-micros": moments(1n, ""),
};

function moments(unit, zone) {
  return {
    toJson: (datum) => momentText(BigInt(datum) * unit) + zone,
    fromJson: (value) => small(microsOfMoment(value, zone) / unit),
  };
}

const SECOND = 1_000_000n;

function fraction(micros) {
  return micros === 0n ? "" : `.${String(micros).padStart(6, "0")}`;
}

function momentText(micros) {
  const rest = ((micros % SECOND) + SECOND) % SECOND;
  return new Date(Number((micros - rest) / 1000n)).toISOString().slice(0, 19) + fraction(rest);
}

function microsOfMoment(value, zone) {
  const [, seconds, digits = "", given = ""] = /^(.*?\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?\s*(Z|[+-]\d\d:?\d\d)?$/.exec(value) ?? [];
  if (!seconds) throw new TypeError(`${value} is no time as 2026-01-31T12:00:00+00:00`);
  if (zone && !given) throw new TypeError(`${value} has no time zone`);
  return BigInt(Date.parse(seconds + (given || "Z"))) * 1000n + BigInt(digits.padEnd(6, "0") || 0);
}

function timeText(micros) {
  const seconds = Number(micros / SECOND);
  const part = (number) => String(Math.floor(number) % 60).padStart(2, "0");
  return `${String(Math.floor(seconds / 3600)).padStart(2, "0")}:${part(seconds / 60)}:${part(seconds)}${fraction(micros % SECOND)}`;
}

function microsOfTime(value) {
  const [hours, minutes, seconds = "0"] = value.split(":");
  const [whole, digits = ""] = seconds.split(".");
  return BigInt(Number(hours) * 3600 + Number(minutes) * 60 + Number(whole)) * SECOND + BigInt(digits.padEnd(6, "0"));
}

function signedOf(buffer) {
  let number = buffer.length > 0 && buffer[0] & 0x80 ? -1n : 0n;
  for (const byte of buffer) number = (number << 8n) | BigInt(byte);
  return number;
}

function bufferOfSigned(number, size) {
  const bytes = [];
  let rest = number;
  do {
    bytes.unshift(Number(rest & 0xffn));
    rest >>= 8n;
  } while (!((rest === 0n && bytes[0] < 0x80) || (rest === -1n && bytes[0] >= 0x80)));
  while (size !== null && bytes.length < size) bytes.unshift(number < 0n ? 0xff : 0);
  return Bytes.from(bytes);
}

function decimalText(number, scale) {
  const digits = String(number < 0n ? -number : number).padStart(scale + 1, "0");
  const point = digits.length - scale;
  return (number < 0n ? "-" : "") + (scale > 0 ? `${digits.slice(0, point)}.${digits.slice(point)}` : digits);
}

function unscaled(value, scale) {
  const [, sign, whole, rest = ""] = /^(-?)(\d+)(?:\.(\d*))?$/.exec(String(value)) ?? [];
  if (whole === undefined || rest.length > scale) throw new TypeError(`${value} is no decimal with ${scale} places`);
  const number = BigInt(whole + rest.padEnd(scale, "0"));
  return sign ? -number : number;
}
