//! The inbound SMTP server: a strict SMTP or LMTP server for return paths and complaint reports, and the sweep that reads the mail it
//! stored.
//!
//! It accepts two kinds of address: a return path whose signed tag names an existing send, and the address that feedback loops report
//! to. A mail is committed before it is answered 250, and read later: its fact goes into the ledger like every other fact, and the mail
//! itself is deleted.

mod reader;
mod store;

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use feedback::report::{Arrival, HEAD_BYTES, MailReport, ReportFinding};
use runner::Deps;
use runtime::Counter;
use schemas::token::TokenKeys;
use smtp::server::{
    BareLineEnds, MailFault, MailHandler, MailProtocol, ReceivedMail, SmtpAnswer, SmtpServerSettings, tls_acceptor,
};
use tokio::net::TcpListener;
use uuid::Uuid;

pub(crate) use self::reader::ReadInboundMail;
use self::store::{InboundStore, MailTarget, StoreFault};

/// The largest mail that is taken; of all but its head only the length is kept.
const SIZE_MAX: u64 = 25 * 1024 * 1024;
/// Recipients one mail may have here: a return path is one recipient's, and each gets a copy of the mail's head.
const RECIPIENTS_MAX: usize = 10;
/// Refusals in one connection; guessing a tag would take billions.
const FAULTS_MAX: u32 = 20;
/// How long the client may be silent, and take for one command.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest a connection may last: one mail takes seconds.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long a mail may take, whatever its length; beyond it, so many octets must have come for each second.
const DATA_TIMEOUT: Duration = Duration::from_secs(30);
const DATA_RATE_MIN: u64 = 4 * 1024;

/// Settings of the inbound SMTP server.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Inbound mail")]
#[group(skip)]
pub struct InboundSmtpSettings {
    /// Where mail to return paths is taken: bounces, complaints, answers. Not given: nowhere.
    #[arg(long, env = "POSTRIDER_INBOUND_ADDR")]
    pub inbound_addr: Option<SocketAddr>,
    /// What is spoken there: `smtp` as a mail exchanger, `lmtp` behind a mail server.
    #[arg(long, env = "POSTRIDER_INBOUND_PROTOCOL", value_enum, default_value = "smtp")]
    pub inbound_protocol: MailProtocol,
    /// The name it greets with: that of the mail exchanger record.
    #[arg(long, env = "POSTRIDER_INBOUND_HOSTNAME", default_value = "localhost")]
    pub inbound_hostname: String,
    /// The address that feedback loops report complaints to. Their reports count when they carry a return path that we signed. One that
    /// carries only a link to leave by counts as an opt-out: the link goes along with every forward.
    #[arg(long, env = "POSTRIDER_INBOUND_FEEDBACK_ADDRESS")]
    pub inbound_feedback_address: Option<String>,
    /// The certificate for STARTTLS, with its chain, as PEM. Not given: STARTTLS is not offered.
    #[arg(long, env = "POSTRIDER_INBOUND_TLS_CERT", requires = "inbound_tls_key")]
    pub inbound_tls_cert: Option<PathBuf>,
    /// Its private key, as PEM.
    #[arg(long, env = "POSTRIDER_INBOUND_TLS_KEY", requires = "inbound_tls_cert")]
    pub inbound_tls_key: Option<PathBuf>,
    /// Connections served at once; others wait.
    #[arg(long, env = "POSTRIDER_INBOUND_CONNECTIONS", default_value_t = 100)]
    pub inbound_connections: usize,
    /// Connections served at once for one client address (an IPv6 network of 64 bits); more are answered 421. 0: no limit. Not counted
    /// with `lmtp`. Behind a proxy that hides the clients' addresses, set 0.
    #[arg(long, env = "POSTRIDER_INBOUND_CONNECTIONS_PER_ADDRESS", default_value_t = 10)]
    pub inbound_connections_per_address: usize,
}

/// Starts the server, and answers its address. It runs until the process stops.
///
/// # Errors
/// When the address cannot be bound, or the certificate cannot be read.
pub async fn listen(deps: &Deps, settings: &InboundSmtpSettings) -> io::Result<Option<SocketAddr>> {
    let Some(address) = settings.inbound_addr else { return Ok(None) };
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let store = InboundStore::new(deps, settings.inbound_feedback_address.as_deref());
    let server = server_settings(settings)?;
    tracing::info!(stage = "engagement", address = %bound, protocol = ?server.protocol, "inbound SMTP server listens");
    tokio::spawn(smtp::server::serve(listener, server, store, deps.shutdown.clone()));
    Ok(Some(bound))
}

fn server_settings(settings: &InboundSmtpSettings) -> io::Result<SmtpServerSettings> {
    let tls = match (&settings.inbound_tls_cert, &settings.inbound_tls_key) {
        (Some(certificate), Some(key)) => Some(tls_acceptor(certificate, key)?),
        _ => None,
    };
    Ok(SmtpServerSettings {
        protocol: settings.inbound_protocol,
        hostname: settings.inbound_hostname.clone(),
        tls,
        credentials: None,
        bare_line_ends: BareLineEnds::Refuse,
        size_max: SIZE_MAX,
        kept_max: HEAD_BYTES,
        read_max: SIZE_MAX * 2,
        recipients_max: RECIPIENTS_MAX,
        faults_max: FAULTS_MAX,
        connections: settings.inbound_connections.max(1),
        // Behind the operator's own mail server, all connections come from that server.
        connections_per_client: match settings.inbound_protocol {
            MailProtocol::Lmtp => 0,
            MailProtocol::Smtp => settings.inbound_connections_per_address,
        },
        silence_timeout: SILENCE_TIMEOUT,
        session_timeout: SESSION_TIMEOUT,
        data_timeout: DATA_TIMEOUT,
        data_rate_min: DATA_RATE_MIN,
    })
}

/// The envelope of the mail in progress.
#[derive(Debug, Default)]
struct InboundEnvelope {
    null_sender: bool,
    targets: Vec<MailTarget>,
}

/// Accepts mail to addresses that name a send, and commits it before it is answered.
impl MailHandler for InboundStore {
    type Envelope = InboundEnvelope;

    fn mail_refused(&self, fault: MailFault) {
        count_refused(match fault {
            MailFault::TooLarge => "too_large",
            MailFault::BareLineEnd => "bare_line_end",
        });
    }

    fn sender(&self, envelope: &mut InboundEnvelope, address: &str) -> SmtpAnswer {
        envelope.null_sender = address.is_empty();
        SmtpAnswer::reply("250 2.1.0 Ok")
    }

    async fn recipient(&self, envelope: &mut InboundEnvelope, address: &str) -> SmtpAnswer {
        match self.target(address).await {
            Ok(target) => {
                envelope.targets.push(target);
                SmtpAnswer::reply("250 2.1.5 Ok")
            }
            Err(StoreFault::Unknown(why)) => {
                count_refused(why);
                SmtpAnswer::reply("550 5.1.1 No such address")
            }
            Err(StoreFault::Away | StoreFault::Full) => SmtpAnswer::reply("451 4.3.0 Not now; come again"),
        }
    }

    async fn mail(&self, envelope: InboundEnvelope, mail: ReceivedMail) -> SmtpAnswer {
        match self.keep(&envelope.targets, envelope.null_sender, mail).await {
            Ok(()) => SmtpAnswer::reply("250 2.0.0 Taken"),
            Err(StoreFault::Full) => SmtpAnswer::reply("452 4.2.2 Too much mail for one message; come again"),
            Err(_) => SmtpAnswer::reply("451 4.3.0 Not now; come again"),
        }
    }
}

/// What a report may say. Without a return path ([`feedback::report::Proofs::is_returned`]) it does what a click on the unsubscribe link
/// does, no more: it may come from anybody the mail was forwarded to.
fn admitted(report: MailReport, arrival: Arrival, send_id: Uuid, tokens: &TokenKeys) -> ReportFinding {
    let is_returned = arrival == Arrival::ReturnPath || report.proofs.is_returned(send_id, tokens);
    match report.finding {
        ReportFinding::Fact(kind) if !is_returned && ledger::suppresses(&kind) => {
            ReportFinding::Fact(feedback::opt_out())
        }
        finding => finding,
    }
}

fn count_refused(why: &'static str) {
    Counter::InboundMailsTotal.add(1, [("outcome", why)]);
}
