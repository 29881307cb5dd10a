//! A load generator for the HTTP edge: signed reads over kept connections, as cheap as possible, so that one core of it can keep
//! one core of the ingress busy.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant as Moment,
};

/// A read that is signed anew each time.
#[derive(Debug, Clone)]
pub struct SignedRead {
    pub product: String,
    pub key: String,
    pub path: String,
    /// The query, without its question mark.
    pub query: String,
}

impl SignedRead {
    fn bytes(&self, mac: &Hmac<Sha256>, empty: &str, nonce: u128) -> Vec<u8> {
        let timestamp = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let mut mac = mac.clone();
        mac.update(format!("GET\n{}\n{timestamp}\n{nonce:032x}\n{empty}", self.path).as_bytes());
        let signature = hex::encode(mac.finalize().into_bytes());
        format!(
            "GET {}?{} HTTP/1.1\r\nhost: bench\r\nx-service-product: {}\r\nx-service-environment: production\r\n\
             x-service-api-key: {}\r\nx-service-timestamp: {timestamp}\r\nx-service-nonce: {nonce:032x}\r\n\
             x-service-signature: sha256={signature}\r\n\r\n",
            self.path, self.query, self.product, self.key
        )
        .into_bytes()
    }
}

struct Caller {
    stream: TcpStream,
    read: Arc<SignedRead>,
    mac: Hmac<Sha256>,
    empty: String,
    buffer: Vec<u8>,
}

impl Caller {
    async fn connect(address: SocketAddr, read: Arc<SignedRead>) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mac = Hmac::<Sha256>::new_from_slice(read.key.as_bytes()).unwrap();
        Self { stream, read, mac, empty: hex::encode(Sha256::digest(b"")), buffer: Vec::with_capacity(8 * 1024) }
    }

    /// Asks once, and wants a 200.
    async fn ask(&mut self) {
        let request = self.read.bytes(&self.mac, &self.empty, rand::random());
        self.stream.write_all(&request).await.unwrap();
        self.buffer.clear();
        loop {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the connection was closed");
            if let Some(length) = whole(&self.buffer) {
                assert!(self.buffer.len() >= length);
                assert!(self.buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&self.buffer));
                return;
            }
        }
    }
}

/// The length of the answer, once all of it is there.
fn whole(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&buffer[..head]).ok()?;
    let length: usize = text.split("content-length: ").nth(1)?.split("\r\n").next()?.parse().ok()?;
    (buffer.len() >= head + length).then_some(head + length)
}

/// Asks as fast as it is answered, over so many connections; answers the rate a second.
pub async fn closed_loop(address: SocketAddr, read: &SignedRead, connections: usize, during: Duration) -> f64 {
    let read = Arc::new(read.clone());
    let begun = Instant::now();
    let callers = (0..connections).map(|_| {
        let read = Arc::clone(&read);
        tokio::spawn(async move {
            let mut caller = Caller::connect(address, read).await;
            let mut asked = 0_u64;
            while begun.elapsed() < during {
                caller.ask().await;
                asked += 1;
            }
            asked
        })
    });
    let asked: u64 = join_all(callers).await.into_iter().map(Result::unwrap).sum();
    asked as f64 / begun.elapsed().as_secs_f64()
}

/// Asks at a fixed rate, whatever is answered; answers the latencies in milliseconds, sorted, each from the time it was due.
pub async fn open_loop(
    address: SocketAddr,
    read: &SignedRead,
    per_second: f64,
    connections: usize,
    during: Duration,
) -> Vec<f64> {
    let read = Arc::new(read.clone());
    let step = Duration::from_secs_f64(connections as f64 / per_second);
    let begun = Moment::now() + Duration::from_millis(200);
    let callers = (0..connections).map(|number| {
        let read = Arc::clone(&read);
        tokio::spawn(async move {
            let mut caller = Caller::connect(address, read).await;
            let mut due = begun + step.mul_f64(number as f64 / connections as f64);
            let mut latencies = Vec::new();
            while due < begun + during {
                tokio::time::sleep_until(due).await;
                caller.ask().await;
                latencies.push(due.elapsed().as_secs_f64() * 1_000.0);
                due += step;
            }
            latencies
        })
    });
    let mut latencies: Vec<f64> = join_all(callers).await.into_iter().flat_map(Result::unwrap).collect();
    latencies.sort_by(f64::total_cmp);
    latencies
}

/// Keeps all threads of a process on some cores, as `taskset` names them.
pub fn pin(pid: u32, cores: &str) {
    let pinned = Command::new("taskset")
        .args(["--all-tasks", "--cpu-list", "--pid", cores, &pid.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(pinned.is_ok_and(|status| status.success()), "taskset (util-linux) is needed to pin the ingress to a core");
}
