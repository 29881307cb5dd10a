//! A real listener, and bytes put on its wire.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::Method;
use http_body_util::BodyExt;
use ingress::{Serving, Settings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;

use crate::common::{Client, Edge, settings};

/// Longest wait for the listener.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A listener on a database of its own.
pub struct Wire {
    pub edge: Edge,
    pub client: Client,
    pub address: SocketAddr,
    shutdown: CancellationToken,
    serving: Serving,
}

impl Wire {
    pub async fn start() -> Self {
        Self::with(settings()).await
    }

    pub async fn with(settings: Settings) -> Self {
        let edge = Edge::with(settings).await;
        let client = edge.client().await;
        let shutdown = CancellationToken::new();
        let serving = ingress::serve(Arc::clone(&edge.ingress), shutdown.clone()).await.unwrap();
        Self { client, address: serving.address, edge, shutdown, serving }
    }

    pub async fn connect(&self) -> TcpStream {
        connect(self.address).await
    }

    /// A signed request as bytes.
    pub async fn signed(&self, method: Method, target: &str, body: &[u8], extra: &[(&str, &str)]) -> Vec<u8> {
        signed(&self.client, method, target, body, extra).await
    }

    /// Drains, and looks whether anything was left behind: an open transaction, a connection that is not in the pool.
    pub async fn stop(self) -> Edge {
        self.shutdown.cancel();
        self.serving.finished().await;
        let pool = &self.edge.ingress.pool;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while pool.num_idle() < pool.size() as usize {
            assert!(tokio::time::Instant::now() < deadline, "connections are not back in the pool");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let open = self
            .edge
            .count(
                "select count(*) from pg_stat_activity where datname = current_database()
                 and application_name = 'postrider ingress' and state like 'idle in transaction%'",
            )
            .await;
        assert_eq!(open, 0, "transactions are left open");
        self.edge
    }
}

pub async fn connect(address: SocketAddr) -> TcpStream {
    tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await.unwrap().unwrap()
}

/// A signed request as bytes.
pub async fn signed(client: &Client, method: Method, target: &str, body: &[u8], extra: &[(&str, &str)]) -> Vec<u8> {
    let request = client.signed(method, target, body);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut wire = format!("{} {target} HTTP/1.1\r\nhost: localhost\r\n", parts.method).into_bytes();
    for (name, value) in &parts.headers {
        wire.extend_from_slice(name.as_str().as_bytes());
        wire.extend_from_slice(b": ");
        wire.extend_from_slice(value.as_bytes());
        wire.extend_from_slice(b"\r\n");
    }
    for (name, value) in extra {
        wire.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if !body.is_empty() {
        wire.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
    }
    wire.extend_from_slice(b"\r\n");
    wire.extend_from_slice(&body);
    wire
}

/// Writes, says that no more will come, and reads to the end. A reset is an end.
pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address).await;
    let (mut read, mut write) = stream.split();
    let mut answer = Vec::new();
    let talk = async {
        tokio::join!(
            async {
                let _ = write.write_all(bytes).await;
                let _ = write.shutdown().await;
            },
            async {
                let mut buffer = [0; 8 * 1024];
                while let Ok(count) = read.read(&mut buffer).await
                    && count > 0
                {
                    answer.extend_from_slice(&buffer[..count]);
                }
            }
        );
    };
    assert!(
        tokio::time::timeout(PATIENCE, talk).await.is_ok(),
        "no end after {:?}",
        String::from_utf8_lossy(&bytes[..bytes.len().min(300)])
    );
    answer
}

/// The statuses of the answers on a connection.
pub fn statuses(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    text.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}
