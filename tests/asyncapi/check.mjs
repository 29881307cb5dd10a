// Parses an AsyncAPI document with the specification's own parser; ends with 1 and says what is wrong when it is not valid.
import { readFile } from "node:fs/promises";
import { Parser } from "@asyncapi/parser";

const text = await readFile(process.argv[2], "utf8");
const { document, diagnostics } = await new Parser().parse(text, { source: process.argv[2] });
const errors = diagnostics.filter((diagnostic) => diagnostic.severity === 0);
for (const { path, message } of errors.slice(0, 20)) console.error(`${path.join(".")}: ${message}`);
if (!document || errors.length > 0) process.exit(1);
const count = (collection) => collection.all().length;
console.log(`${count(document.channels())} channels, ${count(document.operations())} operations, ${count(document.messages())} messages`);
