//! A DNS server: a few names over real UDP. Every other name does not exist.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{
        Name, RData, Record,
        rdata::{CNAME, TXT},
    },
};
use tokio::net::UdpSocket;

type Zone = Arc<Mutex<HashMap<String, (String, String)>>>;

/// Serves until dropped.
pub struct Dns {
    pub address: SocketAddr,
    zone: Zone,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Dns {
    pub async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let zone = Zone::default();
        let served = Arc::clone(&zone);
        let task = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                if let Some(answer) = answer(&buffer[..length], &served) {
                    socket.send_to(&answer, peer).await.unwrap();
                }
            }
        });
        Self { address, zone, task }
    }

    /// Publishes a record as our API describes it.
    pub fn publish(&self, record: &serde_json::Value) {
        let text = |field: &str| record[field].as_str().unwrap().to_owned();
        self.zone.lock().unwrap().insert(text("host"), (text("type"), text("value")));
    }

    /// Takes a name away.
    pub fn remove(&self, host: &str) {
        self.zone.lock().unwrap().remove(host).unwrap();
    }

    /// Lets a name get no definite answer.
    pub fn fail(&self, host: &str) {
        self.zone.lock().unwrap().insert(host.to_owned(), ("SERVFAIL".to_owned(), String::new()));
    }
}

fn answer(query: &[u8], zone: &Zone) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    let question = query.queries.first()?.clone();
    let name = question.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_desired = true;
    response.metadata.recursion_available = true;
    response.add_query(question.clone());
    let data = match zone.lock().unwrap().get(&name) {
        None => {
            response.metadata.response_code = ResponseCode::NXDomain;
            None
        }
        Some((kind, _)) if kind == "SERVFAIL" => {
            response.metadata.response_code = ResponseCode::ServFail;
            None
        }
        Some((kind, value)) if kind == "CNAME" => Some(RData::CNAME(CNAME(Name::from_ascii(value).unwrap()))),
        Some((_, value)) => Some(RData::TXT(TXT::from_bytes(value.as_bytes().chunks(255).collect()))),
    };
    if let Some(data) = data.filter(|data| data.record_type() == question.query_type()) {
        response.add_answer(Record::from_rdata(question.name().clone(), 60, data));
    }
    response.to_vec().ok()
}
