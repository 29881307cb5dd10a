//! A small HTTP server that keeps what it was asked and answers by script.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use url::Url;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What it does with one request.
#[derive(Debug, Clone)]
pub enum Act {
    /// Status, further headers, body.
    Answer(u16, &'static str, String),
    /// Status 200 and this body, once the test says so.
    AnswerLater(Arc<Notify>, String),
    /// Reads the request and never answers.
    Hang,
    /// Reads the request and closes.
    Drop,
    /// A status line and then a body without end.
    Endless(u16),
    /// Octets that are not HTTP.
    Garbage,
}

pub struct StandIn {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    seen: Mutex<Vec<Seen>>,
    acts: Mutex<VecDeque<Act>>,
}

impl StandIn {
    /// Plays the acts in order; the last one again and again.
    pub async fn playing(acts: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { seen: Mutex::default(), acts: Mutex::new(acts.into()) });
        let served = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, served.clone()));
            }
        });
        Self { address, shared }
    }

    pub async fn answering(status: u16, headers: &'static str, body: &str) -> Self {
        Self::playing(vec![Act::Answer(status, headers, body.to_owned())]).await
    }

    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn url(&self) -> Url {
        Url::parse(&format!("http://{}/", self.address)).unwrap()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.into_iter().next().unwrap()
    }
}

impl Shared {
    fn next(&self) -> Act {
        let mut acts = self.acts.lock().unwrap();
        if acts.len() > 1 { acts.pop_front().unwrap() } else { acts.front().cloned().unwrap() }
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    while let Some(seen) = read(&mut stream).await {
        shared.seen.lock().unwrap().push(seen);
        match shared.next() {
            Act::Answer(status, headers, body) => {
                if answer(&mut stream, status, headers, &body).await.is_err() {
                    return;
                }
            }
            Act::AnswerLater(go, body) => {
                go.notified().await;
                if answer(&mut stream, 200, "", &body).await.is_err() {
                    return;
                }
            }
            Act::Hang => std::future::pending().await,
            Act::Drop => return,
            Act::Endless(status) => {
                let _ = stream
                    .write_all(format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\r\n").as_bytes())
                    .await;
                let filler = vec![b'x'; 16 * 1024];
                while stream.write_all(&filler).await.is_ok() {}
                return;
            }
            Act::Garbage => {
                let _ = stream.write_all(b"220 mail.example ESMTP\r\n").await;
                return;
            }
        }
    }
}

async fn answer(stream: &mut TcpStream, status: u16, headers: &str, body: &str) -> std::io::Result<()> {
    let text = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).await
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut input = Vec::new();
    let end = loop {
        if let Some(at) = input.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut input).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(input[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let mut request = lines.next()?.split(' ');
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = input.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Seen { method: request.next()?.to_owned(), path: request.next()?.to_owned(), headers, body })
}
