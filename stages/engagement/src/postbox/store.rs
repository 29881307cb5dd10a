//! Whose an address is, and the mail in the ledger before it is answered for.

use std::sync::Arc;

use runner::Deps;
use runtime::{Counter, Reader};
use schemas::{SendId, SignalKind, token::TokenKeys};
use sqlx::PgPool;
use uuid::Uuid;

use crate::reading;
use feedback::report::{Arrival, Reading};
use ledger::facts;

/// Where a mail goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// To the return path of a send there is.
    Send { tenant_id: Uuid, send_id: Uuid },
    /// To the address of feedback loops: the mail must say itself which send it is about, and prove it.
    Feedback,
}

/// What a report to the address of feedback loops is about.
enum Reported {
    /// A send there is.
    Send { tenant_id: Uuid, send_id: Uuid },
    /// The recipient of a send that the ledger does not keep any more, and what the report says.
    Contact { tenant_id: Uuid, contact_id: Uuid, reading: Reading },
}

/// A mail, whole.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) null_sender: bool,
    pub(super) size: i32,
    pub(super) head: Vec<u8>,
}

/// Why an address is not taken, or a mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreFault {
    /// Nobody's: forged, or of a send there is not. Counted by its word.
    Unknown(&'static str),
    /// Postgres or the reader is away.
    Away,
}

pub(super) struct Store {
    pool: PgPool,
    reader: Reader,
    tokens: Arc<TokenKeys>,
    feedback: Option<String>,
}

impl Store {
    pub(super) fn new(deps: &Deps, feedback: Option<&str>) -> Self {
        let Deps { pool, reader, tokens, .. } = deps.clone();
        Self { pool, reader, tokens, feedback: feedback.map(str::to_ascii_lowercase) }
    }

    /// Where mail to an address goes. The domain does not matter: the local part proves itself.
    pub(super) async fn target(&self, address: &str) -> Result<Target, StoreFault> {
        if self.feedback.as_deref().is_some_and(|feedback| address.eq_ignore_ascii_case(feedback)) {
            return Ok(Target::Feedback);
        }
        let local = address.rsplit_once('@').map_or(address, |(local, _)| local);
        let send_id = self.tokens.returned_send(local).ok_or(StoreFault::Unknown("bad_address"))?;
        let tenant_id = self.tenant_of(send_id).await?.ok_or(StoreFault::Unknown("unknown_send"))?;
        Ok(Target::Send { tenant_id, send_id })
    }

    /// Commits a mail for all it is addressed to. A repetition changes nothing.
    pub(super) async fn keep(&self, targets: &[Target], mail: Arrived) -> Result<(), StoreFault> {
        let mut sends: Vec<(Uuid, Uuid, Arrival)> = Vec::with_capacity(targets.len());
        for target in targets {
            match target {
                Target::Send { tenant_id, send_id } => sends.push((*tenant_id, *send_id, Arrival::ReturnPath)),
                Target::Feedback => match self.reported(&mail).await? {
                    Some(Reported::Send { tenant_id, send_id }) => sends.push((tenant_id, send_id, Arrival::Feedback)),
                    Some(Reported::Contact { tenant_id, contact_id, reading }) => {
                        self.heed(tenant_id, contact_id, &reading).await.map_err(|error| away(&error))?;
                        Counter::InboundMailsTotal.add(1, [("outcome", reading.label())]);
                    }
                    // Taken all the same: a refusal would only come back to somebody who cannot mend it.
                    None => Counter::InboundMailsTotal.add(1, [("outcome", "no_evidence")]),
                },
            }
        }
        if sends.is_empty() {
            return Ok(());
        }
        let tenants: Vec<Uuid> = sends.iter().map(|(tenant, ..)| *tenant).collect();
        let ids: Vec<Uuid> = sends.iter().map(|(_, send, _)| Uuid::new_v5(send, &mail.head)).collect();
        let arrivals: Vec<String> = sends.iter().map(|(.., arrival)| arrival.as_str().to_owned()).collect();
        let sends: Vec<Uuid> = sends.into_iter().map(|(_, send, _)| send).collect();
        sqlx::query!(
            "insert into inbound_mails (tenant_id, id, send_id, road, null_sender, size, head)
             select w.tenant_id, w.id, w.send_id, w.road, $5, $6, $7
             from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[]) as w (tenant_id, id, send_id, road)
             on conflict do nothing",
            &tenants,
            &ids,
            &sends,
            &arrivals,
            mail.null_sender,
            mail.size,
            mail.head,
        )
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(|error| away(&error))
    }

    /// What a report of a complaint proves to be about.
    async fn reported(&self, mail: &Arrived) -> Result<Option<Reported>, StoreFault> {
        let report = match reading::mail(&self.reader, &mail.head, Arrival::Feedback, mail.null_sender).await {
            Ok(report) => report,
            // The sender comes again.
            Err(error) if error.is_transient() => return Err(StoreFault::Away),
            Err(_) => return Ok(None),
        };
        let Some((claimed, send_id)) = report.proofs.send(&self.tokens) else { return Ok(None) };
        let Some(tenant_id) = self.tenant_of(send_id).await? else {
            let contact = report.proofs.contact(&self.tokens);
            let reading = report.reading;
            return Ok(contact.map(|(tenant_id, contact_id)| Reported::Contact { tenant_id, contact_id, reading }));
        };
        // A token that names a tenant must name the send's own.
        let is_its_own = claimed.is_none_or(|claimed| claimed == tenant_id);
        Ok(is_its_own.then_some(Reported::Send { tenant_id, send_id }))
    }

    /// Does what a report asks for whose send is gone, before it is answered for.
    async fn heed(&self, tenant: Uuid, contact: Uuid, reading: &Reading) -> sqlx::Result<()> {
        let mut tx = self.pool.begin().await?;
        match reading {
            Reading::Told(SignalKind::Unsubscribed { .. }) => {
                ledger::opt_out_contact(&mut tx, tenant, contact).await?;
            }
            Reading::Told(kind) if facts::is_complaint(kind) => {
                ledger::complaint_of_contact(&mut tx, tenant, contact).await?;
            }
            Reading::Told(_) | Reading::Noted(_) => {}
        }
        tx.commit().await
    }

    /// Whose a send is, if there is one.
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
    tracing::warn!(
        stage = "engagement",
        error = runtime::db::describe(error),
        "a mail that came back cannot be kept now"
    );
    StoreFault::Away
}
