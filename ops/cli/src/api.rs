//! `postrider api`: one call of the HTTP API, signed, from a shell.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use chrono::{SecondsFormat, Utc};
use ingress::pipeline::auth::signature::SignedParts;
use reqwest::{Method, Response, StatusCode, header};
use runtime::{
    Backoff,
    outbound::{retry_after, tls},
};
use schemas::{key, new_id};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use url::Url;

use crate::{invocation, operator};

/// Pauses before a call is repeated, unless the answer names one.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));
/// The longest pause that an answer may ask for; after it, the answer itself is printed.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest silence of one attempt: an import of many rows takes its time. An export may take as long as it likes.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// How operations without a body name their tenant.
const TENANT_PARAMETER: &str = "#/components/parameters/product_tenant_id";

/// Calls an operation of the HTTP API and prints its answer; without an operation, lists them. Ends with 1 when the call is refused.
///
/// `postrider api createContact email=ann@example.com tags:='["vip"]'`
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "API client")]
pub struct ApiArgs {
    /// The operation, as the OpenAPI document names it.
    operation: Option<String>,
    /// `name=text`, `name:=JSON` or `name=@file`: what its path names, and fields of the body or the query.
    #[arg(value_name = "NAME=VALUE", value_parser = argument)]
    arguments: Vec<(String, Value)>,
    /// A file with the body as JSON, `-` for standard input. Arguments replace fields of it.
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Where the API is.
    #[arg(long, env = "POSTRIDER_API_URL", default_value = "http://127.0.0.1:8080")]
    api_url: Url,
    /// The product's API key.
    #[arg(long, env = "POSTRIDER_API_KEY", hide_env_values = true)]
    api_key: Option<SecretString>,
    /// The tenant, put where an operation asks for `product_tenant_id`.
    #[arg(long, env = "POSTRIDER_API_TENANT")]
    tenant: Option<String>,
    /// The `Idempotency-Key`. Default: a new one for each call, the same in all its attempts.
    #[arg(long)]
    idempotency_key: Option<String>,
    /// How often a call is repeated that was not answered, or with 429, 502, 503 or 504.
    #[arg(long, default_value_t = 4)]
    retries: u32,
}

pub async fn run(args: ApiArgs) -> anyhow::Result<ExitCode> {
    let document: Value = serde_json::from_str(&ingress::contracts().openapi)?;
    let operations = operations(&document);
    let Some(name) = &args.operation else {
        let listed = operations.values().map(|operation| {
            json!({"operation": operation.id, "call": format!("{} {}", operation.method, operation.path), "summary": operation.summary})
        });
        operator::print(&listed.collect::<Vec<_>>(), &["operation", "call", "summary"]);
        return Ok(ExitCode::SUCCESS);
    };
    let operation = operations.get(name.as_str()).with_context(|| format!("no operation is named {name}"))?;
    let key = args.api_key.as_ref().context("--api-key is required, or POSTRIDER_API_KEY in the environment")?;
    let call = ApiCall::new(operation, &args)?;
    let answer = call.perform(key.expose_secret(), args.retries).await?;
    let is_done = answer.status().is_success();
    write_answer(answer, &mut std::io::stdout()).await?;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Splits `name=text`, `name:=JSON` and `name=@file`.
pub fn argument(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("an argument is name=text, name:=JSON or name=@file")?;
    if let Some(name) = name.strip_suffix(':') {
        let value = serde_json::from_str(value).map_err(|error| format!("{name}: {error}"))?;
        return Ok((name.to_owned(), value));
    }
    let value = match value.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?,
        None => value.to_owned(),
    };
    Ok((name.to_owned(), Value::String(value)))
}

struct ApiOperation<'a> {
    id: &'a str,
    method: String,
    path: &'a str,
    summary: &'a str,
    has_body: bool,
    /// Those of operators name no tenant.
    names_tenant: bool,
}

/// The operations that an API key may call, by id.
fn operations(document: &Value) -> BTreeMap<&str, ApiOperation<'_>> {
    let paths = document["paths"].as_object().into_iter().flatten().filter(|(path, _)| path.starts_with("/v1/"));
    let methods = paths.flat_map(|(path, item)| {
        item.as_object().into_iter().flatten().map(move |(method, operation)| (path, method, operation))
    });
    methods
        .filter_map(|(path, method, operation)| {
            let id = operation["operationId"].as_str()?;
            let has_body = operation["requestBody"].is_object();
            let mut parameters = operation["parameters"].as_array().into_iter().flatten();
            let names_tenant = has_body || parameters.any(|parameter| parameter["$ref"] == TENANT_PARAMETER);
            let operation = ApiOperation {
                id,
                method: method.to_ascii_uppercase(),
                path,
                summary: operation["summary"].as_str().unwrap_or_default(),
                has_body,
                names_tenant,
            };
            Some((id, operation))
        })
        .collect()
}

/// A call, ready to be signed.
struct ApiCall {
    method: Method,
    url: Url,
    body: Option<Vec<u8>>,
    idempotency_key: String,
}

impl ApiCall {
    fn new(operation: &ApiOperation<'_>, args: &ApiArgs) -> anyhow::Result<Self> {
        let mut fields = read_body(args)?;
        fields.extend(args.arguments.iter().cloned());
        if let Some(tenant) = args.tenant.as_ref().filter(|_| operation.names_tenant) {
            fields.entry("product_tenant_id").or_insert_with(|| Value::from(tenant.as_str()));
        }
        let mut url = args.api_url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty();
            for segment in operation.path.split('/').skip(1) {
                match segment.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                    Some(name) => {
                        let value = fields.remove(name).with_context(|| format!("{} needs {name}=…", operation.id))?;
                        path.push(&text_of(&value));
                    }
                    None => drop(path.push(segment)),
                }
            }
        }
        if !operation.has_body {
            url.query_pairs_mut().extend_pairs(fields.iter().map(|(name, value)| (name, text_of(value))));
        }
        Ok(Self {
            method: operation.method.parse()?,
            url,
            body: operation.has_body.then(|| serde_json::to_vec(&fields)).transpose()?,
            idempotency_key: args.idempotency_key.clone().unwrap_or_else(|| new_id().to_string()),
        })
    }

    /// Calls, and calls again while nothing or a passing fault is answered: the `Idempotency-Key` makes a repetition harmless.
    async fn perform(&self, key: &str, retries: u32) -> anyhow::Result<Response> {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config_with_own_authorities()?)
            .redirect(reqwest::redirect::Policy::none())
            .read_timeout(SILENCE_MAX)
            .build()?;
        let mut failures = 0;
        loop {
            failures += 1;
            let answer = http.execute(self.signed(key)?).await;
            let pause = match &answer {
                _ if failures > retries => None,
                Ok(answer) if is_passing(answer.status()) => {
                    Some(retry_after(answer.headers(), Utc::now()).unwrap_or(BACKOFF.pause(failures)))
                }
                Ok(_) => None,
                Err(_) => Some(BACKOFF.pause(failures)),
            };
            match pause.filter(|pause| *pause <= PAUSE_MAX) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return answer.context("the API did not answer"),
            }
        }
    }

    /// One attempt, with a signature of its own.
    fn signed(&self, key: &str) -> anyhow::Result<reqwest::Request> {
        let (product, environment) = key::owner(key).context("this is no API key: svc_live_… or svc_test_…")?;
        let body = self.body.as_deref().unwrap_or_default();
        let (timestamp, nonce) = (Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true), new_id().to_string());
        let parts = SignedParts {
            method: self.method.as_str(),
            path: self.url.path(),
            timestamp: &timestamp,
            nonce: &nonce,
            body,
        };
        let mut request = reqwest::Request::new(self.method.clone(), self.url.clone());
        let headers = [
            ("x-service-product", product),
            ("x-service-environment", environment.as_str()),
            ("x-service-api-key", key),
            ("x-service-timestamp", &timestamp),
            ("x-service-nonce", &nonce),
            ("x-service-signature", &parts.sign(key)),
            ("idempotency-key", &self.idempotency_key),
        ];
        for (name, value) in headers {
            request.headers_mut().insert(name, value.parse()?);
        }
        if self.body.is_some() {
            request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        }
        *request.body_mut() = self.body.clone().map(Into::into);
        Ok(request)
    }
}

/// The body that a file holds; empty without one.
fn read_body(args: &ApiArgs) -> anyhow::Result<Map<String, Value>> {
    let text = match args.body.as_deref() {
        None => return Ok(Map::new()),
        Some(path) if path.as_os_str() == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            text
        }
        Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string())?,
    };
    serde_json::from_str(&text).context("the body is no JSON object")
}

/// A value as it stands in a path, a query or a table.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// Writes an answer: JSON to be read, or on one line with `--json`; anything else, as exports, piece by piece as it comes.
async fn write_answer(mut answer: Response, out: &mut impl Write) -> anyhow::Result<()> {
    let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/json") {
        let value: Value = answer.json().await?;
        let text = if invocation::wants_json() { value.to_string() } else { serde_json::to_string_pretty(&value)? };
        return Ok(writeln!(out, "{text}")?);
    }
    while let Some(piece) = answer.chunk().await.context("the answer broke off")? {
        out.write_all(&piece)?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("email=ann@example.com", "email", json!("ann@example.com"))]
    #[case("limit:=3", "limit", json!(3))]
    #[case("name=a=b", "name", json!("a=b"))]
    fn an_argument_is_text_or_json(#[case] text: &str, #[case] name: &str, #[case] value: Value) {
        assert_eq!(argument(text).unwrap(), (name.to_owned(), value));
    }

    #[rstest]
    #[case("email")]
    #[case("limit:=three")]
    #[case("csv=@/no/such/file")]
    fn what_is_no_argument_is_refused(#[case] text: &str) {
        assert!(argument(text).is_err());
    }

    /// Keeps each piece that is written by itself.
    #[derive(Default)]
    struct Pieces(Vec<Vec<u8>>);

    impl Write for Pieces {
        fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
            self.0.push(piece.to_vec());
            Ok(piece.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_export_is_written_as_it_comes_and_a_broken_one_fails() {
        let pieces = [Ok("a,b\r\n"), Ok("{}\r\n"), Err(std::io::Error::other("broken"))];
        let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
        let answer = http::Response::builder().header("content-type", "text/csv").body(body).unwrap();
        let mut written = Pieces::default();
        assert!(write_answer(answer.into(), &mut written).await.is_err());
        assert_eq!(written.0, [b"a,b\r\n".to_vec(), b"{}\r\n".to_vec()]);
    }

    #[test]
    fn every_operation_of_the_api_is_listed() {
        let document = serde_json::from_str(&ingress::contracts().openapi).unwrap();
        let operations = operations(&document);
        assert!(operations["createContact"].has_body && !operations["getContact"].has_body);
        assert_eq!(operations["getContact"].path, "/v1/contacts/{id}");
    }

    #[rstest]
    #[case::read("listContacts", Some("tenant-1"))]
    #[case::of_operators("getPlatformHealth", None)]
    fn the_tenant_is_put_where_an_operation_asks_for_it(#[case] name: &str, #[case] expected: Option<&str>) {
        let document = serde_json::from_str(&ingress::contracts().openapi).unwrap();
        let args = ApiArgs {
            operation: Some(name.to_owned()),
            arguments: Vec::new(),
            body: None,
            api_url: "http://127.0.0.1:8080".parse().unwrap(),
            api_key: None,
            tenant: Some("tenant-1".to_owned()),
            idempotency_key: None,
            retries: 0,
        };
        let call = ApiCall::new(&operations(&document)[name], &args).unwrap();
        let named = call.url.query_pairs().find(|(name, _)| name == "product_tenant_id");
        assert_eq!(named.map(|(_, value)| value.into_owned()).as_deref(), expected);
    }
}
