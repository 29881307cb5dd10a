//! A client that says exactly what it is told, byte for byte.

use std::time::Duration;

use devtools::sink::{Sink, SinkOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A sink on free ports.
pub async fn start() -> Sink {
    Sink::start(SinkOptions::default()).await.unwrap()
}

/// A sink, and a client that has greeted it.
pub async fn connected() -> (Sink, Client) {
    let sink = start().await;
    let client = Client::connect(&sink).await;
    (sink, client)
}

pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects and greets.
    pub async fn connect(sink: &Sink) -> Self {
        let stream = TcpStream::connect(sink.smtp_addr()).await.unwrap();
        // A body and its dot may be sent apart, and must not wait for each other.
        stream.set_nodelay(true).unwrap();
        let mut client = Self { stream: BufReader::new(stream) };
        assert_eq!(client.reply().await.unwrap(), "220 sink ESMTP");
        assert!(client.say("EHLO client").await.unwrap().starts_with("250"));
        client
    }

    /// Sends bytes as they are. A connection that is gone is noticed by the next reply.
    pub async fn send(&mut self, text: &str) {
        let _ = self.stream.get_mut().write_all(text.as_bytes()).await;
    }

    /// Sends a line and answers the reply to it; `None` when the connection ends.
    pub async fn say(&mut self, line: &str) -> Option<String> {
        self.send(&format!("{line}\r\n")).await;
        self.reply().await
    }

    /// The next reply, its last line when it has several; `None` when the connection ends.
    pub async fn reply(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            let read = tokio::time::timeout(Duration::from_secs(20), self.stream.read_line(&mut line));
            match read.await.expect("no reply within 20 s") {
                Ok(0) | Err(_) => return None,
                Ok(_) if line.as_bytes().get(3) == Some(&b'-') => {}
                Ok(_) => return Some(line.trim_end().to_owned()),
            }
        }
    }

    /// A whole transaction; what it led to.
    pub async fn mail(&mut self, from: &str, to: &str, source: &str) -> String {
        for (stage, line) in [
            ("mail", format!("MAIL FROM:<{from}>")),
            ("rcpt", format!("RCPT TO:<{to}>")),
            ("data", "DATA".to_owned()),
            ("dot", format!("{source}\r\n.")),
        ] {
            match self.say(&line).await {
                None => return format!("{stage}: lost"),
                Some(reply) if reply.starts_with(['2', '3']) => {}
                Some(reply) => {
                    // As a sender does, for the next one to start clean.
                    self.say("RSET").await;
                    return format!("{stage}: {reply}");
                }
            }
        }
        "accepted".to_owned()
    }
}

/// An HTTP request; status and body of the answer.
pub async fn http(sink: &Sink, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(sink.http_addr()).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// A GET that answers JSON.
pub async fn get_json(sink: &Sink, path: &str) -> serde_json::Value {
    let (status, body) = http(sink, "GET", path, "").await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}
