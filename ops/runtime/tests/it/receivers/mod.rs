//! Receivers that count who comes, and a DNS server that says what it is told to.

use std::{
    collections::HashMap,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{RData, Record, RecordType},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

/// An answer with this status and body.
pub fn answer(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} Answer\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: AtomicUsize,
    last: Mutex<String>,
}

/// Answers every request with the same bytes, and keeps the connection. Stops when dropped.
pub struct Receiver {
    pub address: SocketAddr,
    seen: Arc<Seen>,
    hang_up: watch::Sender<usize>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    pub async fn start(answer: Vec<u8>) -> Self {
        Self::at("127.0.0.1:0", answer).await
    }

    pub async fn at(address: &str, answer: Vec<u8>) -> Self {
        Self::serve(address, None, Some(answer)).await
    }

    pub async fn start_tls(tls: &Tls, answer: Vec<u8>) -> Self {
        Self::serve("127.0.0.1:0", Some(tls.acceptor.clone()), Some(answer)).await
    }

    /// Reads the request and ends the connection.
    pub async fn that_hangs_up() -> Self {
        Self::serve("127.0.0.1:0", None, None).await
    }

    async fn serve(address: &str, tls: Option<TlsAcceptor>, answer: Option<Vec<u8>>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let (hang_up, ends) = watch::channel(0);
        let counted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.connections.fetch_add(1, Ordering::SeqCst);
                let (seen, answer, tls, mut ends) = (Arc::clone(&counted), answer.clone(), tls.clone(), ends.clone());
                ends.mark_unchanged();
                tokio::spawn(async move {
                    let talk = async {
                        match tls {
                            None => talk(stream, &seen, answer).await,
                            Some(tls) => {
                                if let Ok(stream) = tls.accept(stream).await {
                                    talk(stream, &seen, answer).await;
                                }
                            }
                        }
                    };
                    tokio::select! {
                        () = talk => {}
                        _ = ends.changed() => {}
                    }
                });
            }
        });
        Self { address, seen, hang_up, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Ends all connections there are.
    pub fn hang_up(&self) {
        self.hang_up.send_modify(|times| *times += 1);
    }

    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    /// The last request with its body.
    pub fn last_request(&self) -> String {
        self.seen.last.lock().unwrap().clone()
    }
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, seen: &Seen, answer: Option<Vec<u8>>) {
    let (mut read, mut part) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(length) => read.extend_from_slice(&part[..length]),
        }
        let Some(length) = whole(&read) else { continue };
        let request: Vec<u8> = read.drain(..length).collect();
        seen.requests.fetch_add(1, Ordering::SeqCst);
        *seen.last.lock().unwrap() = String::from_utf8_lossy(&request).into_owned();
        let Some(answer) = &answer else { return };
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

/// The length of the request at the beginning, if it is there as a whole.
fn whole(read: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(read).to_ascii_lowercase();
    let head = text.find("\r\n\r\n")? + 4;
    let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    let length = head + length.unwrap_or(0_usize);
    (read.len() >= length).then_some(length)
}

/// A certificate, and the file of the authority that signed it.
pub struct Tls {
    acceptor: TlsAcceptor,
    pub ca_file: tempfile::NamedTempFile,
}

impl Tls {
    pub fn of(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let mut ca_file = tempfile::NamedTempFile::new().unwrap();
        ca_file.write_all(issuer.pem().as_bytes()).unwrap();
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), ca_file }
    }
}

/// What a name leads to: each question takes the next of these, around and around.
struct Turns {
    answers: Vec<Vec<IpAddr>>,
    asked: usize,
}

/// A DNS server over UDP. Names it was not told are NXDOMAIN; nothing may be kept. Stops when dropped.
pub struct Dns {
    pub address: SocketAddr,
    names: Arc<Mutex<HashMap<String, Turns>>>,
    task: JoinHandle<()>,
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
        let names: Arc<Mutex<HashMap<String, Turns>>> = Arc::default();
        let served = Arc::clone(&names);
        let task = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let response = respond(&buffer[..length], &served);
                socket.send_to(&response, peer).await.unwrap();
            }
        });
        Self { address, names, task }
    }

    pub fn always(&self, name: &str, addresses: &[IpAddr]) {
        self.set(name, vec![addresses.to_vec()]);
    }

    /// Another address for each question after IPv4 addresses.
    pub fn in_turn(&self, name: &str, addresses: &[IpAddr]) {
        self.set(name, addresses.iter().map(|address| vec![*address]).collect());
    }

    fn set(&self, name: &str, answers: Vec<Vec<IpAddr>>) {
        self.names.lock().unwrap().insert(name.to_owned(), Turns { answers, asked: 0 });
    }
}

fn respond(query: &[u8], names: &Mutex<HashMap<String, Turns>>) -> Vec<u8> {
    let query = Message::from_vec(query).unwrap();
    let question = query.queries.first().unwrap().clone();
    let name = question.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_desired = true;
    response.metadata.recursion_available = true;
    response.add_query(question.clone());
    match names.lock().unwrap().get_mut(&name) {
        None => response.metadata.response_code = ResponseCode::NXDomain,
        Some(turns) => {
            let current = &turns.answers[turns.asked % turns.answers.len()];
            turns.asked += usize::from(question.query_type() == RecordType::A);
            for address in current {
                let data = RData::from(*address);
                if data.record_type() == question.query_type() {
                    response.add_answer(Record::from_rdata(question.name().clone(), 0, data));
                }
            }
        }
    }
    response.to_vec().unwrap()
}
