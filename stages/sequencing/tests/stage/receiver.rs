//! An endpoint of a product's, on this machine.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What was posted: the head in lower case, and the body.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    pub(crate) head: String,
    pub(crate) body: serde_json::Value,
}

impl Posted {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(prefix.as_str()))
    }
}

/// Answers with the statuses it is given, then 200.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) url: String,
    posted: Arc<Mutex<Vec<Posted>>>,
}

impl Receiver {
    pub(crate) async fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self { url: format!("http://{}/hook", listener.local_addr().unwrap()), posted: Arc::default() };
        let statuses = Arc::new(Mutex::new(statuses.to_vec()));
        let posted = Arc::clone(&receiver.posted);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&posted), Arc::clone(&statuses)));
            }
        });
        receiver
    }

    pub(crate) fn posted(&self) -> Vec<Posted> {
        self.posted.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, posted: Arc<Mutex<Vec<Posted>>>, statuses: Arc<Mutex<Vec<u16>>>) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&part[..count]);
        let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.trim().parse().ok()?;
        if read.len() < end + 4 + length {
            continue;
        }
        let body = serde_json::from_slice(&read[end + 4..end + 4 + length]).unwrap();
        posted.lock().unwrap().push(Posted { head, body });
        let status = {
            let mut statuses = statuses.lock().unwrap();
            if statuses.is_empty() { 200 } else { statuses.remove(0) }
        };
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.ok()?;
        return Some(());
    }
}
