// Encodes cases.json with npm's hessian.js (2.11.0), or decodes what another encoder wrote.
//
//   npm install hessian.js@2.11.0
//   node vectors.js encode cases.json > node.txt
//   node vectors.js check cases.json ours.txt
//
// Lines are "name<TAB>hex". A value that the library cannot encode is left out.
'use strict';
const assert = require('assert');
const fs = require('fs');
const hessian = require('hessian.js');
const Long = require('long');

function binary(size) {
  return Buffer.from(Array.from({ length: size }, (_, index) => index % 251));
}

function build(tagged) {
  const [kind] = Object.keys(tagged);
  const value = tagged[kind];
  switch (kind) {
    case 'null': return null;
    case 'bool': case 'int': case 'string': return value;
    case 'long': return { $class: 'long', $: Long.fromString(value) };
    case 'double': return { $class: 'double', $: value };
    case 'repeated': return value.piece.repeat(value.count) + value.tail;
    case 'binary': return binary(value);
    case 'list': return value.map(build);
    case 'map': return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, build(v)]));
    default: throw new Error('unknown kind ' + kind);
  }
}

// What decoding gives: longs as strings where a double cannot hold them, nothing wrapped.
function expected(tagged) {
  const [kind] = Object.keys(tagged);
  const value = tagged[kind];
  switch (kind) {
    case 'long': return Number.isSafeInteger(Number(value)) ? Number(value) : value;
    case 'double': return value;
    case 'list': return value.map(expected);
    case 'map': return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, expected(v)]));
    default: return build(tagged);
  }
}

const [, , mode, casesFile, vectorsFile] = process.argv;
const cases = JSON.parse(fs.readFileSync(casesFile, 'utf8'));
if (mode === 'encode') {
  for (const [name, tagged] of Object.entries(cases)) {
    const encoder = new hessian.EncoderV2({ size: 1 << 20 });
    try {
      console.log(name + '\t' + encoder.write(build(tagged)).get().toString('hex'));
    } catch (error) {
      console.error('left out: ' + name + ': ' + error.message);
    }
  }
} else {
  let good = 0;
  for (const line of fs.readFileSync(vectorsFile, 'utf8').trim().split('\n')) {
    const [name, hex] = line.split('\t');
    try {
      const value = hessian.decode(Buffer.from(hex, 'hex'), '2.0');
      assert.deepStrictEqual(value, expected(cases[name]));
      good += 1;
    } catch (error) {
      console.log('differs: ' + name + ': ' + error.message.slice(0, 200));
    }
  }
  console.log(good + ' of ' + Object.keys(cases).length + ' decoded to the same value');
}
