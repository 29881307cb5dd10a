//! What a mail costs here: CPU of a DKIM signature and of the SMTP client, against a server in this process that takes everything.
//!
//! `cargo run --release -p delivery --example cost`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement talks, and fails loudly")]

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use dkim::{DkimKey, DkimSigner, GeneratedKey};
use futures::StreamExt;
use secrecy::ExposeSecret;
use smtp::{Envelope, EnvelopeAddress, Pool, SmtpMessage, SmtpSettings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const MAILS: usize = 40_000;
const SIGNATURES: u32 = 2_000;
const PIPELINING: &[u8] = b"250-cost\r\n250-PIPELINING\r\n250 8BITMIME\r\n";
const CHUNKING: &[u8] = b"250-cost\r\n250-PIPELINING\r\n250-CHUNKING\r\n250 8BITMIME\r\n";

fn main() {
    let message = message();
    println!("message: {} octets", message.as_bytes().len());
    signature("rsa-2048", &DkimKey::generate_rsa().unwrap(), &message);
    signature("ed25519", &DkimKey::generate_ed25519().unwrap(), &message);
    let checked = Instant::now();
    for _ in 0..SIGNATURES {
        std::hint::black_box(SmtpMessage::new(std::hint::black_box(message.as_bytes().to_vec())).unwrap());
    }
    println!("check of a message: {:.1} µs", checked.elapsed().as_secs_f64() * 1e6 / f64::from(SIGNATURES));
    for (ehlo, offers) in [(CHUNKING, "CHUNKING"), (PIPELINING, "PIPELINING")] {
        let server = serve(ehlo);
        for connections in [1, 16, 64] {
            print!("{offers}, ");
            client(server, connections, &message);
        }
    }
}

/// 10 KB of HTML, quoted-printable, as the renderer makes it.
fn message() -> SmtpMessage {
    let line = "<p style=3D\"margin:0\">Dear reader, this is one line of a newsletter, with=\r\n";
    let header = "From: Acme <news@example.com>\r\nTo: ann@example.net\r\nSubject: News of the week\r\n\
        Date: Fri, 20 Nov 2026 12:00:00 +0000\r\nMessage-ID: <1@example.com>\r\nMIME-Version: 1.0\r\n\
        Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n";
    SmtpMessage::new(format!("{header}{}", line.repeat(10_240 / line.len())).into_bytes()).unwrap()
}

fn signature(name: &str, key: &GeneratedKey, message: &SmtpMessage) {
    let signer = DkimSigner::new("example.com", "s1", DkimKey::from_pkcs8(key.private_pkcs8.expose_secret()).unwrap());
    let before = thread_cpu();
    for _ in 0..SIGNATURES {
        std::hint::black_box(signer.sign(message, SystemTime::now()).unwrap());
    }
    println!("signature {name}: {:.1} µs CPU", (thread_cpu() - before).as_secs_f64() * 1e6 / f64::from(SIGNATURES));
}

/// CPU this thread has used.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn client(server: SocketAddr, connections: usize, message: &SmtpMessage) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut settings = SmtpSettings::new(format!("smtp://{server}?tls=none").parse().unwrap(), "client.example.com");
    settings.max_connections = connections;
    let envelope = Envelope {
        from: Some(EnvelopeAddress::parse("b-0123456789abcdef0123456789abcdef-01234567@send.example.com").unwrap()),
        to: EnvelopeAddress::parse("ann@example.net").unwrap(),
        size: message.as_bytes().len(),
        eight_bit: false,
        international: false,
    };
    let (started, before) = (Instant::now(), thread_cpu());
    runtime.block_on(async {
        let pool = Pool::new(settings).unwrap();
        let send = |_| async {
            let mut taken = pool.take(&envelope).await.unwrap();
            taken.send(&envelope, "", message, Instant::now() + Duration::from_secs(2)).await.unwrap();
        };
        futures::stream::iter(0..MAILS).map(send).buffer_unordered(connections).collect::<()>().await;
    });
    let (cpu, wall) = ((thread_cpu() - before).as_secs_f64(), started.elapsed().as_secs_f64());
    println!(
        "{connections} connections: {:.0} mails/s, client {:.1} µs CPU a mail",
        MAILS as f64 / wall,
        cpu * 1e6 / MAILS as f64
    );
}

/// A server on a thread of its own that pipelines and takes everything.
fn serve(ehlo: &'static [u8]) -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                tokio::spawn(session(socket, ehlo));
            }
        });
    });
    receiver.recv().unwrap()
}

async fn session(mut socket: TcpStream, ehlo: &[u8]) {
    socket.write_all(b"220 cost\r\n").await.unwrap();
    let (mut input, mut in_body) = (Vec::with_capacity(32 * 1024), false);
    while socket.read_buf(&mut input).await.unwrap_or(0) > 0 {
        let mut answer = Vec::new();
        if let Some(at) = memchr::memmem::find(&input, b"BDAT ") {
            // MAIL, RCPT and the chunk, in one write.
            let line = &input[at + 5..];
            let (size, text) = line.split_at(line.iter().position(|byte| *byte == b' ').unwrap());
            let size: usize = std::str::from_utf8(size).unwrap().parse().unwrap();
            if text.len() >= size + " LAST\r\n".len() {
                input.clear();
                answer.extend_from_slice(b"250 2.1.0 ok\r\n250 2.1.5 ok\r\n250 2.0.0 queued as 42\r\n");
            }
        } else if in_body {
            if input.ends_with(b"\r\n.\r\n") {
                in_body = false;
                input.clear();
                answer.extend_from_slice(b"250 2.0.0 queued as 42\r\n");
            }
        } else if input.ends_with(b"\r\n") {
            for line in input.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                match &line[..4] {
                    b"EHLO" => answer.extend_from_slice(ehlo),
                    b"DATA" => {
                        in_body = true;
                        answer.extend_from_slice(b"354 go\r\n");
                    }
                    _ => answer.extend_from_slice(b"250 2.0.0 ok\r\n"),
                }
            }
            input.clear();
        }
        if !answer.is_empty() && socket.write_all(&answer).await.is_err() {
            return;
        }
    }
}
