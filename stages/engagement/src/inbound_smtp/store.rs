//! Checks recipient addresses, and commits a mail before it is accepted.

use std::sync::Arc;

use ledger::PastRecipient;
use runner::Deps;
use runtime::{Counter, Reader, column};
use schemas::{SendId, token::TokenKeys};
use smtp::server::ReceivedMail;
use sqlx::PgPool;
use uuid::Uuid;

use super::admitted;
use crate::reading;
use feedback::report::{Arrival, ReportFinding};

/// Mails of one send that may wait to be read; more are refused for now. A return path is in every mail, so any recipient can write to it
/// as often as they like.
const UNREAD_MAX: i64 = 20;

/// What a recipient address names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MailTarget {
    /// The return path of an existing send.
    Send { tenant_id: Uuid, send_id: Uuid },
    /// The address of feedback loops, or the return path of a send that the ledger does not keep any more: the mail itself must name
    /// its send or contact, and prove it. With the send of the return path: the mail must be about that one.
    Unnamed(Arrival, Option<Uuid>),
}

/// The subject of a report that names and proves it.
enum Reported {
    /// An existing send.
    Send { tenant_id: Uuid, send_id: Uuid },
    /// The recipient of a send that the ledger does not keep any more, with the reading of the report.
    Contact { tenant_id: Uuid, contact_id: Uuid, reading: ReportFinding },
}

/// Why an address or a mail is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreFault {
    /// Unknown address: forged, or of a send that does not exist. Holds the metric's outcome.
    Unknown(&'static str),
    /// Postgres or the reader is away.
    Away,
    /// As many mails of the send wait to be read as may.
    Full,
}

/// The mail that came back, in Postgres.
pub(super) struct InboundStore {
    pool: PgPool,
    reader: Reader,
    tokens: Arc<TokenKeys>,
    feedback: Option<String>,
}

impl InboundStore {
    pub(super) fn new(deps: &Deps, feedback: Option<&str>) -> Self {
        let Deps { pool, reader, tokens, .. } = deps.clone();
        Self { pool, reader, tokens, feedback: feedback.map(str::to_ascii_lowercase) }
    }

    /// What a recipient address names. The domain does not matter: the local part is signed.
    pub(super) async fn target(&self, address: &str) -> Result<MailTarget, StoreFault> {
        if self.feedback.as_deref().is_some_and(|feedback| address.eq_ignore_ascii_case(feedback)) {
            return Ok(MailTarget::Unnamed(Arrival::Feedback, None));
        }
        let local = address.rsplit_once('@').map_or(address, |(local, _)| local);
        let send_id = self.tokens.returned_send(local).ok_or(StoreFault::Unknown("bad_address"))?;
        match self.tenant_of(send_id).await? {
            Some(tenant_id) => Ok(MailTarget::Send { tenant_id, send_id }),
            None if self.is_dropped(send_id).await? => Ok(MailTarget::Unnamed(Arrival::ReturnPath, Some(send_id))),
            None => Err(StoreFault::Unknown("unknown_send")),
        }
    }

    /// Commits a mail for each of its recipients. A repetition changes nothing.
    pub(super) async fn keep(
        &self,
        targets: &[MailTarget],
        null_sender: bool,
        mail: ReceivedMail,
    ) -> Result<(), StoreFault> {
        let (head, size) = (mail.content, i32::try_from(mail.size).unwrap_or(i32::MAX));
        let mut sends: Vec<(Uuid, Uuid, Arrival)> = Vec::with_capacity(targets.len());
        for target in targets {
            match target {
                MailTarget::Send { tenant_id, send_id } => sends.push((*tenant_id, *send_id, Arrival::ReturnPath)),
                MailTarget::Unnamed(arrival, returned) => match self
                    .reported(&head, *arrival, *returned, null_sender)
                    .await?
                {
                    Some(Reported::Send { tenant_id, send_id }) => sends.push((tenant_id, send_id, *arrival)),
                    Some(Reported::Contact { tenant_id, contact_id, reading }) => {
                        self.apply_to_contact(tenant_id, contact_id, &reading).await.map_err(|error| away(&error))?;
                        Counter::InboundMailsTotal.add(1, [("outcome", reading.label())]);
                    }
                    // Accepted all the same: the sender of the report could not correct it.
                    None => Counter::InboundMailsTotal.add(1, [("outcome", "no_evidence")]),
                },
            }
        }
        if sends.is_empty() {
            return Ok(());
        }
        let full = sqlx::query_file_scalar!(
            "queries/keep_mail.sql",
            &column(&sends, |(tenant, ..)| *tenant),
            &column(&sends, |(_, send, _)| Uuid::new_v5(send, &head)),
            &column(&sends, |(_, send, _)| *send),
            &column(&sends, |(.., arrival)| arrival.as_str().to_owned()),
            null_sender,
            size,
            head,
            UNREAD_MAX,
        )
        .fetch_one(&self.pool)
        .await
        .map_err(|error| away(&error))?;
        if full > 0 { Err(StoreFault::Full) } else { Ok(()) }
    }

    /// The send or contact that a report proves to be about. `returned`: the send whose return path it came to.
    async fn reported(
        &self,
        head: &[u8],
        arrival: Arrival,
        returned: Option<Uuid>,
        null_sender: bool,
    ) -> Result<Option<Reported>, StoreFault> {
        let report = match reading::mail(&self.reader, head, arrival, null_sender).await {
            Ok(report) => report,
            // The sender tries again.
            Err(error) if error.is_transient() => return Err(StoreFault::Away),
            Err(_) => return Ok(None),
        };
        let Some((claimed, send_id)) = report.proofs.send(&self.tokens) else { return Ok(None) };
        if returned.is_some_and(|returned| returned != send_id) {
            return Ok(None);
        }
        let Some(tenant_id) = self.tenant_of(send_id).await? else {
            let contact = report.proofs.contact(send_id, &self.tokens);
            let reading = admitted(report, arrival, send_id, &self.tokens);
            return Ok(contact.map(|(tenant_id, contact_id)| Reported::Contact { tenant_id, contact_id, reading }));
        };
        // A token that names a tenant must name the send's own.
        let is_its_own = claimed.is_none_or(|claimed| claimed == tenant_id);
        Ok(is_its_own.then_some(Reported::Send { tenant_id, send_id }))
    }

    /// Applies a report to its contact, if the send is not kept any more; before the mail is accepted.
    async fn apply_to_contact(&self, tenant: Uuid, contact: Uuid, reading: &ReportFinding) -> sqlx::Result<()> {
        let ReportFinding::Fact(kind) = reading else { return Ok(()) };
        let mut tx = self.pool.begin().await?;
        ledger::apply_to_past_recipient(&mut tx, tenant, &PastRecipient::Contact(contact), kind, None).await?;
        tx.commit().await
    }

    /// True if the ledger does not keep the month of a send any more.
    async fn is_dropped(&self, send_id: Uuid) -> Result<bool, StoreFault> {
        let dropped =
            async { ledger::dropped_months(&mut *self.pool.acquire().await?, &[SendId(send_id).month()]).await };
        dropped.await.map(|dropped| !dropped.is_empty()).map_err(|error| away(&error))
    }

    /// The tenant of a send, if the send exists.
    async fn tenant_of(&self, send_id: Uuid) -> Result<Option<Uuid>, StoreFault> {
        sqlx::query_file_scalar!(
            "queries/tenant_of_send.sql",
            SendId(send_id).batch(),
            send_id,
            SendId(send_id).month()
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(|error| away(&error))
    }
}

fn away(error: &sqlx::Error) -> StoreFault {
    tracing::warn!(stage = "engagement", error = runtime::db::describe(error), "inbound mail cannot be stored now");
    StoreFault::Away
}
