/** One call over bare gRPC stubs: progress on standard error, the result as JSON on standard output. */

import { Readable } from "node:stream";
import { Channel, ChannelCredentials, ClientError, Status, createClient } from "nice-grpc";
import { ExecuteRequest, ToolHostServiceDefinition } from "../../src/gen/pillion/v1/execute.js";
import type { Outcome } from "../../src/gen/pillion/v1/outcome.js";

/** Runs the tool and prints what comes of it. Returns a sentence if it failed. */
async function call(target: string, tool: string, argumentsJson: string): Promise<string | undefined> {
  // `createChannel` would add a port to unix:/path.
  const channel = new Channel(target, ChannelCredentials.createInsecure(), {});
  const host = createClient(ToolHostServiceDefinition, channel);
  const request = ExecuteRequest.create({
    frames: [{ call: 1n, body: { $case: "start", value: { tool, arguments: Buffer.from(argumentsJson) } } }],
  });
  try {
    for await (const { frames } of host.execute(Readable.from([request]))) {
      for (const { body } of frames) {
        if (body?.$case === "progress") {
          console.error(line(body.value.payload.toString()));
        } else if (body?.$case === "outcome") {
          return end(body.value);
        }
      }
    }
    return "The stream ended without an outcome.";
  } catch (error) {
    if (error instanceof ClientError) {
      return `The stream was lost: ${Status[error.code]}: ${error.details}`;
    }
    throw error;
  } finally {
    channel.close();
  }
}

/** What a person reads of a report: its `message`, else all of it. */
function line(payload: string): string {
  try {
    const { message } = JSON.parse(payload) as { message?: unknown };
    return typeof message === "string" ? message : payload;
  } catch {
    return payload; // `null`, or no JSON.
  }
}

function end({ kind }: Outcome): string | undefined {
  if (kind?.$case === "result") {
    console.log(kind.value.json?.toString() ?? "");
    return kind.value.isError ? "The tool says that this is an error." : undefined;
  }
  return (kind?.$case === "failure" && kind.value.message) || "The call ended without a result.";
}

const [target, tool, argumentsJson] = process.argv.slice(2);
if (target === undefined || tool === undefined || argumentsJson === undefined || process.argv.length > 5) {
  console.error("usage: caller.js TARGET TOOL ARGUMENTS");
  process.exitCode = 2;
} else {
  const sentence = await call(target, tool, argumentsJson).catch(String);
  if (sentence !== undefined) {
    console.error(sentence);
    process.exitCode = 1;
  }
}
