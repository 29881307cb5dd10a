//! A product's endpoint: keeps what it is posted, and answers as a test wants it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;

use crate::until;

/// What it answers.
#[derive(Debug, Clone)]
pub enum Manner {
    Status(u16),
    Wait(u16, &'static str),
    /// To this address.
    Redirect(String),
    /// 200 and so many bytes.
    Huge(usize),
    /// Nothing, ever.
    Silent,
    /// A status, once it is let.
    Gated(u16),
}

#[derive(Debug, Clone)]
pub struct Hit {
    pub headers: BTreeMap<String, String>,
    pub body: Bytes,
}

impl Hit {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(String::as_str).unwrap_or_default()
    }

    pub fn event(&self) -> String {
        self.header("webhook-id").to_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

struct Seen {
    /// What it answers first.
    statuses: VecDeque<u16>,
    /// What it answers then.
    manner: Manner,
    hits: Vec<Hit>,
    under_way: usize,
    most: usize,
}

#[derive(Clone)]
pub struct Receiver {
    pub url: String,
    seen: Arc<Mutex<Seen>>,
    gate: Arc<Semaphore>,
}

impl Receiver {
    pub async fn start(manner: Manner) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let seen = Seen { statuses: VecDeque::new(), manner, hits: Vec::new(), under_way: 0, most: 0 };
        let receiver = Self { url, seen: Arc::new(Mutex::new(seen)), gate: Arc::new(Semaphore::new(0)) };
        let app = Router::new().fallback(take).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        receiver
    }

    /// Answers with these statuses, one for each request, and then with 200.
    pub async fn answering(statuses: &[u16]) -> Self {
        let receiver = Self::start(Manner::Status(200)).await;
        receiver.seen.lock().unwrap().statuses.extend(statuses);
        receiver
    }

    pub fn manner(&self, manner: Manner) {
        self.seen.lock().unwrap().manner = manner;
    }

    pub fn hits(&self) -> Vec<Hit> {
        self.seen.lock().unwrap().hits.clone()
    }

    /// The ids of the events it was posted, in order, repetitions included.
    pub fn events(&self) -> Vec<String> {
        self.hits().iter().map(Hit::event).collect()
    }

    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().hits.len()
    }

    pub fn under_way(&self) -> usize {
        self.seen.lock().unwrap().under_way
    }

    /// The most requests that were under way at once.
    pub fn most(&self) -> usize {
        self.seen.lock().unwrap().most
    }

    /// Lets so many gated requests be answered.
    pub fn let_through(&self, count: usize) {
        self.gate.add_permits(count);
    }

    pub async fn has(&self, count: usize) {
        until(&format!("{count} requests"), async || self.count() >= count).await;
    }
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> Response {
    let manner = {
        let mut seen = receiver.seen.lock().unwrap();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.to_str().unwrap_or_default().to_owned()))
            .collect();
        seen.hits.push(Hit { headers, body });
        seen.under_way += 1;
        seen.most = seen.most.max(seen.under_way);
        seen.statuses.pop_front().map_or_else(|| seen.manner.clone(), Manner::Status)
    };
    let response = match manner {
        Manner::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Manner::Wait(status, after) => {
            (StatusCode::from_u16(status).unwrap(), [(header::RETRY_AFTER, after)]).into_response()
        }
        Manner::Redirect(to) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response(),
        Manner::Huge(bytes) => "x".repeat(bytes).into_response(),
        Manner::Silent => std::future::pending().await,
        Manner::Gated(status) => {
            receiver.gate.acquire().await.unwrap().forget();
            StatusCode::from_u16(status).unwrap().into_response()
        }
    };
    receiver.seen.lock().unwrap().under_way -= 1;
    response
}
