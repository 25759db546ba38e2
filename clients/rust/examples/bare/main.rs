//! One call over bare gRPC stubs: progress on standard error, the result as JSON on standard output.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use pillion::v1::frame::Body;
use pillion::v1::outcome::Kind;
use pillion::v1::tool_host_service_client::ToolHostServiceClient;
use pillion::v1::{ExecuteRequest, Frame, Outcome, Start};
use serde_json::Value;
use tonic::Status;
use tonic::transport::Endpoint;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Ok([target, tool, arguments]) = <[String; 3]>::try_from(arguments) else {
        eprintln!("usage: bare TARGET TOOL ARGUMENTS");
        return ExitCode::from(2);
    };
    match call(target, tool, arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tool and prints what comes of it. An error is a sentence that says why it failed.
async fn call(target: String, tool: String, arguments: String) -> Result<(), String> {
    let start = Start { tool, arguments: Some(arguments.into()), ..Default::default() };
    let frame = Frame { call: 1, body: Some(Body::Start(start)), ..Default::default() };
    let request = tokio_stream::once(ExecuteRequest { frames: vec![frame] });
    let endpoint = Endpoint::from_shared(target).map_err(|wrong| format!("The target is no address: {wrong}."))?;
    let mut host = ToolHostServiceClient::new(endpoint.connect_lazy());
    let mut messages = host.execute(request).await.map_err(|status| lost(&status))?.into_inner();
    while let Some(message) = messages.message().await.map_err(|status| lost(&status))? {
        for frame in message.frames {
            match frame.body {
                Some(Body::Progress(progress)) => eprintln!("{}", line(&progress.payload)),
                Some(Body::Outcome(outcome)) => return end(outcome),
                _ => {}
            }
        }
    }
    Err("The stream ended without an outcome.".into())
}

/// What a person reads of a report: its `message`, else all of it.
fn line(payload: &[u8]) -> String {
    let report: Value = serde_json::from_slice(payload).unwrap_or_default();
    report["message"].as_str().map_or_else(|| String::from_utf8_lossy(payload).into(), String::from)
}

fn end(outcome: Outcome) -> Result<(), String> {
    match outcome.kind {
        Some(Kind::Result(result)) => {
            let json = result.json.unwrap_or_default();
            io::stdout().write_all(&[&json[..], b"\n"].concat()).map_err(|error| error.to_string())?;
            if result.is_error { Err("The tool says that this is an error.".into()) } else { Ok(()) }
        }
        Some(Kind::Failure(failure)) if !failure.message.is_empty() => Err(failure.message),
        _ => Err("The call ended without a result.".into()),
    }
}

fn lost(status: &Status) -> String {
    format!("The stream was lost: {:?}: {}", status.code(), status.message())
}
