//! The HTTP client for the collector. It has the TLS configuration of every other outgoing connection.

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use reqwest::redirect;

use crate::OtlpError;

/// How much of an answer is read; it says little.
const ANSWER_MAX_BYTES: usize = 64 * 1024;

/// Posts to the collector.
#[derive(Debug, Clone)]
pub(crate) struct Client(reqwest::Client);

impl Client {
    pub fn new(ca_file: Option<&Path>, timeout: Duration) -> Result<Self, OtlpError> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(runtime::outbound::tls::config(ca_file)?)
            .redirect(redirect::Policy::none())
            .timeout(timeout)
            .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self(client))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Without the address in the error: it may hold a key, and errors are logged.
        let mut answer = self.0.execute(request.try_into()?).await.map_err(reqwest::Error::without_url)?;
        let mut response = Response::builder().status(answer.status());
        if let Some(headers) = response.headers_mut() {
            *headers = std::mem::take(answer.headers_mut());
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
            let room = ANSWER_MAX_BYTES - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                break;
            }
        }
        Ok(response.body(body.into())?)
    }
}
