// What GitHub itself thinks of a workflow, with GitHub's own packages, which are found where the script lies.
//   node workflow.mjs check FILE   its findings, as JSON: [{line, message}]
//   node workflow.mjs evaluate     reads a line {expression, contexts, functions} and answers with a line, the value; until the end of input
// What an expression's function answers, such as success(), is given by name in `functions`.
import { readFileSync } from "node:fs";
import { registerHooks } from "node:module";
import { createInterface } from "node:readline";

// The packages import their data without saying that it is JSON, which only bundlers take.
registerHooks({
  load: (url, context, next) => next(url, url.endsWith(".json") ? { ...context, importAttributes: { type: "json" } } : context),
});

async function check(file) {
  const { validate } = await import("@actions/languageservice/validate");
  const { TextDocument } = await import("vscode-languageserver-textdocument");
  const document = TextDocument.create(`file://${file}`, "github-actions-workflow", 0, readFileSync(file, "utf8"));
  const findings = await validate(document, {});
  return findings.map(({ range, message }) => ({ line: range.start.line + 1, message }));
}

async function evaluator() {
  const { data, Evaluator, Lexer, Parser } = await import("@actions/expressions");
  return ({ expression, contexts, functions }) => {
    const told = Object.entries(functions).map(([name, value]) => {
      return { name, minArgs: 0, maxArgs: 0, call: () => new data.BooleanData(value) };
    });
    const parsed = new Parser(new Lexer(expression).lex().tokens, Object.keys(contexts), told).parse();
    const values = JSON.parse(JSON.stringify(contexts), data.reviver);
    const value = new Evaluator(parsed, values, new Map(told.map((one) => [one.name, one]))).evaluate();
    return JSON.parse(JSON.stringify(value, data.replacer));
  };
}

const [command, file] = process.argv.slice(2);
if (command === "check") {
  console.log(JSON.stringify(await check(file)));
} else {
  const evaluate = await evaluator();
  for await (const line of createInterface({ input: process.stdin })) console.log(JSON.stringify(evaluate(JSON.parse(line))));
}
