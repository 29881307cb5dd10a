//! `GET /v1/explain`: why somebody was mailed, was not, or would not be. Each gate in the order the engine passes them, with the
//! row that decides and since when; then what became of the send.

mod doc;
mod gates;
mod store;

use schemas::{Address, Classification};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use self::gates::{Gate, Verdict};
use crate::{
    act::{Act, Faults, Id, Reply, Routes, read},
    error::ApiError,
    routes::{
        campaigns::store::{self as campaigns, CampaignRow},
        enrollments::store as enrollments,
        sends::{self, store as ledger},
        sequences::store as sequences,
    },
};

/// The route.
pub(crate) fn routes() -> Routes {
    Routes::new().get("/v1/explain", read("sends:read", explain), doc::explain)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    campaign_id: Option<Id>,
    message_id: Option<Id>,
    sequence_id: Option<Id>,
    email: Option<String>,
}

/// What is asked about.
#[derive(Debug, Clone, Copy)]
enum About {
    Campaign(Uuid),
    Message(Uuid),
    Sequence(Uuid),
}

impl Query {
    fn validate(self) -> Result<(About, Address), ApiError> {
        let mut faults = Faults::default();
        let abouts = [
            self.campaign_id.map(|id| About::Campaign(id.0)),
            self.message_id.map(|id| About::Message(id.0)),
            self.sequence_id.map(|id| About::Sequence(id.0)),
        ];
        let mut given = abouts.into_iter().flatten();
        let about = given.next();
        let one = about.is_some() && given.next().is_none();
        faults.require(one, "campaign_id", "required", "name one of campaign_id, message_id and sequence_id");
        let email = faults.required("email", self.email);
        let address = email.and_then(|email| faults.address("email", &email));
        faults.finish()?;
        about.zip(address).ok_or_else(ApiError::internal)
    }
}

async fn explain(act: &mut Act, query: Query) -> Result<Reply, ApiError> {
    let (about, address) = query.validate()?;
    match about {
        About::Campaign(id) => campaign(act, id, &address).await,
        About::Message(id) => message(act, id, &address).await,
        About::Sequence(id) => sequence(act, id, &address).await,
    }
}

async fn campaign(act: &mut Act, id: Uuid, address: &Address) -> Result<Reply, ApiError> {
    let tenant = act.tenant;
    let row = campaigns::get(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    let contact = store::contact(act.db(), tenant, address.as_str()).await?;
    let month = ledger::campaign_month(act.db(), tenant, id).await?.flatten();
    let send = match (&contact, month) {
        (Some(contact), Some(month)) => ledger::to_contact(act.db(), tenant, month, id, contact.id).await?,
        _ => None,
    };
    let mut gates = vec![match &contact {
        None => gates::no_contact(),
        Some(contact) => {
            let is_member = match month {
                Some(_) => send.is_some(),
                None => is_member(act, &row, contact.id).await?,
            };
            gates::audience(&row, is_member, month.is_some())
        }
    }];
    if let Some(contact) = &contact {
        gates.extend(person(act, contact, address, row.classification).await?);
    }
    gates.extend(sender(act, row.sender_profile_id).await?);
    gates.push(gates::window(&row));
    gates.push(gates::campaign(&row));
    let variant = match &contact {
        Some(contact) if !row.variants.is_empty() => {
            let part = store::part(act.db(), id, contact.id, row.split().thresholds()).await?;
            send.as_ref().and_then(|send| send.variant.clone()).or(row.split().letter(part).map(str::to_owned))
        }
        _ => None,
    };
    let mut answer = answer("campaign", id, address, contact.map(|contact| contact.id), gates);
    answer["explanation"]["variant"] = json!(variant);
    finish(act, answer, send).await
}

async fn message(act: &mut Act, id: Uuid, address: &Address) -> Result<Reply, ApiError> {
    let tenant = act.tenant;
    let message = store::message(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("message"))?;
    let contact = store::contact(act.db(), tenant, address.as_str()).await?;
    let send_id = match &contact {
        Some(contact) => store::recipient(act.db(), tenant, id, contact.id).await?,
        None => None,
    };
    let send = match send_id {
        Some(send) => ledger::get(act.db(), tenant, send).await?,
        None => None,
    };
    let mut gates = vec![match &contact {
        None => gates::no_contact(),
        Some(_) => gates::recipient(id, send_id.is_some(), message.created_at),
    }];
    if let Some(contact) = &contact {
        gates.extend(person(act, contact, address, Classification::Operational).await?);
    }
    gates.extend(sender(act, message.sender_id).await?);
    finish(act, answer("message", id, address, contact.map(|contact| contact.id), gates), send).await
}

/// The newest enrollment decides; what is shown as the send is its newest mail.
async fn sequence(act: &mut Act, id: Uuid, address: &Address) -> Result<Reply, ApiError> {
    let tenant = act.tenant;
    let row = sequences::get(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sequence"))?;
    let contact = store::contact(act.db(), tenant, address.as_str()).await?;
    let newest = match &contact {
        Some(contact) => enrollments::newest(act.db(), tenant, id, contact.id).await?,
        None => None,
    };
    let (enrollment, send) = match newest {
        Some(newest) => {
            let mail = enrollments::newest_send(act.db(), tenant, newest).await?;
            let send = match mail {
                Some(mail) => ledger::get(act.db(), tenant, mail).await?,
                None => None,
            };
            (enrollments::get(act.db(), tenant, newest).await?, send)
        }
        None => (None, None),
    };
    let mut gates = vec![match &contact {
        None => gates::no_contact(),
        Some(_) => gates::enrollment(enrollment.as_ref()),
    }];
    if let Some(contact) = &contact {
        gates.extend(person(act, contact, address, Classification::Marketing).await?);
    }
    if let Some(profile) = row.sender_profile_id {
        gates.extend(sender(act, profile).await?);
    }
    gates.push(gates::sequence(&row));
    finish(act, answer("sequence", id, address, contact.map(|contact| contact.id), gates), send).await
}

/// Whether somebody is in the audience of a campaign that was not looked up yet.
async fn is_member(act: &mut Act, row: &CampaignRow, contact: Uuid) -> Result<bool, ApiError> {
    let tenant = act.tenant;
    let selector =
        audience::AudienceSelector::from_columns(&row.audience_mode, row.list_id, row.segment_id, &row.tag_ids);
    let Some(selector) = selector else { return Ok(false) };
    let found = audience::includes(act.db(), tenant, &selector, contact).await;
    Ok(found.map_err(sqlx::Error::from)?)
}

/// What stands for and against a person.
async fn person(
    act: &mut Act,
    contact: &store::ContactRow,
    address: &Address,
    classification: Classification,
) -> Result<Vec<Gate>, ApiError> {
    let tenant = act.tenant;
    let suppressions = store::suppressions(act.db(), tenant, address.as_str()).await?;
    let mut gates = vec![gates::contact(contact)];
    gates.extend(gates::suppressions(&suppressions, classification));
    gates.push(gates::consent(contact, classification));
    Ok(gates)
}

/// What stands for and against the sender.
async fn sender(act: &mut Act, sender: Uuid) -> Result<Vec<Gate>, ApiError> {
    let (tenant, defaults) = (act.tenant, act.ingress.settings.quota);
    let row = store::sender(act.db(), tenant, sender).await?;
    let room = delivery::quota::room(act.db(), tenant, &defaults).await?;
    Ok(vec![gates::tenant(tenant, &row), gates::sender(sender, &row), gates::domain(&row), gates::quota(&room)])
}

fn answer(kind: &str, id: Uuid, address: &Address, contact: Option<Uuid>, gates: Vec<Gate>) -> Value {
    let first = |verdict| gates.iter().find(|gate| gate.verdict == verdict).map(|gate| gate.gate);
    let stopped = first(Verdict::Stop);
    let waits = first(Verdict::Wait);
    let verdict = match (stopped, waits) {
        (Some(_), _) => Verdict::Stop,
        (None, Some(_)) => Verdict::Wait,
        (None, None) => Verdict::Pass,
    };
    json!({
        "ok": true,
        "explanation": {
            "about": {"kind": kind, "id": id},
            "email": address.as_str(),
            "contact_id": contact,
            "verdict": verdict,
            "decided_by": stopped.or(waits),
            "variant": null,
            "gates": gates,
        },
    })
}

/// What became of it, where there is a send.
async fn finish(act: &mut Act, mut answer: Value, send: Option<ledger::SendRow>) -> Result<Reply, ApiError> {
    let tenant = act.tenant;
    answer["explanation"]["send"] = match send {
        Some(send) => {
            let events = ledger::events(act.db(), tenant, send.id).await?;
            sends::record(&send, &events)
        }
        None => Value::Null,
    };
    Reply::ok(&answer)
}
