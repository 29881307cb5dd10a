//! A DNS server for tests: a few names over real UDP.
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use hickory_resolver::{
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    proto::{
        op::{Message, ResponseCode},
        rr::{
            Name, RData, Record, RecordType,
            rdata::{CNAME, TXT},
        },
    },
};
use tokio::net::UdpSocket;

type Zone = Arc<Mutex<HashMap<String, Vec<String>>>>;

/// Answers for the names it was given: `TXT text`, `TXT one|two` (one record of two strings), `CNAME target`,
/// `SERVFAIL`, `REFUSED` or `SILENCE`. Every other name is NXDOMAIN. Stops when dropped.
pub struct Dns {
    pub addr: SocketAddr,
    zone: Zone,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Dns {
    pub async fn start(entries: &[(&str, &str)]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        let zone = Zone::default();
        let served = zone.clone();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                if let Some(answer) = answer(&buffer[..length], &served) {
                    socket.send_to(&answer, peer).await.unwrap();
                }
            }
        });
        let dns = Self { addr, zone, task };
        for (name, value) in entries {
            dns.add(name, value);
        }
        dns
    }

    pub fn add(&self, name: &str, value: &str) {
        self.zone.lock().unwrap().entry(name.to_ascii_lowercase()).or_default().push(value.to_owned());
    }

    pub fn remove(&self, name: &str) {
        self.zone.lock().unwrap().remove(name).unwrap();
    }

    /// Has a name answer with this alone.
    pub fn set(&self, name: &str, value: &str) {
        self.zone.lock().unwrap().insert(name.to_ascii_lowercase(), vec![value.to_owned()]);
    }

    /// A resolver configuration that asks this server only.
    pub fn config(&self) -> ResolverConfig {
        let mut connection = ConnectionConfig::udp();
        connection.port = self.addr.port();
        ResolverConfig::from_name_servers(vec![NameServerConfig::new(self.addr.ip(), true, vec![connection])])
    }
}

fn answer(query: &[u8], zone: &Zone) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    let question = query.queries.first()?.clone();
    let name = question.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let values = zone.lock().unwrap().get(&name).cloned();
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_desired = true;
    response.metadata.recursion_available = true;
    response.add_query(question.clone());
    let Some(values) = values else {
        response.metadata.response_code = ResponseCode::NXDomain;
        return response.to_vec().ok();
    };
    for value in values {
        let (kind, text) = value.split_once(' ').unwrap_or((value.as_str(), ""));
        let (record_type, data) = match kind {
            "SILENCE" => return None,
            "SERVFAIL" => {
                response.metadata.response_code = ResponseCode::ServFail;
                continue;
            }
            "REFUSED" => {
                response.metadata.response_code = ResponseCode::Refused;
                continue;
            }
            "CNAME" => (RecordType::CNAME, RData::CNAME(CNAME(Name::from_ascii(text).unwrap()))),
            _ => (RecordType::TXT, RData::TXT(TXT::from_bytes(strings(text)))),
        };
        if record_type == question.query_type() {
            response.add_answer(Record::from_rdata(question.name().clone(), 60, data));
        }
    }
    response.to_vec().ok()
}

/// The strings of a TXT record: cut at `|`, and where one is longer than the 255 octets a string holds.
fn strings(text: &str) -> Vec<&[u8]> {
    text.split('|').flat_map(|part| part.as_bytes().chunks(255)).collect()
}
