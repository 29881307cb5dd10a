//! What a caller decides about a campaign: read, checked by itself, then against what is there.

use chrono::Utc;
use ledger::frequency::Urgency;
use schemars::JsonSchema;
use schemas::{Classification, MessagePurpose, OnMiss};
use serde::Deserialize;
use sqlx::PgConnection;
use templates::SNIPPET_NAME_MAX;
use uuid::Uuid;

use super::{
    content::{self, CampaignContent, OwnBody, within_variant},
    rows::{CampaignRow, LOCAL_TIME_PATTERN},
    rules::{NewAbTest, NewTripwire, NewVariant, PACE_MAX, Rules, SOURCE_MAX, VARIANTS_MAX, VARIANTS_MIN},
    store::CampaignDraft,
};
use crate::{
    api::{
        audiences::held::{AudienceKind, hold_audiences},
        segments,
        senders::store as senders,
        templates::content::either_body,
    },
    pipeline::{
        Faults, Id, Patch, RequestContext,
        error::ApiError,
        types::{Line, Name, OTHERS, Words, either, without},
        validate::{LINE_MAX, NAME_MAX},
    },
};

/// Most tags one campaign may name.
pub(super) const TAGS_MAX: usize = 100;
/// Longest audience reason, in characters.
pub(super) const REASON_MAX: usize = 1_000;
pub(super) const MODES: [&str; 3] = ["list", "segment", "tags"];
pub(super) const GOALS: [&str; 12] = [
    "newsletter",
    "announcement",
    "product_launch",
    "webinar_invite",
    "trade_show_followup",
    "demo_request",
    "appointment_request",
    "reengagement",
    "cross_sell",
    "renewal_reminder",
    "partner_activation",
    "other",
];

/// A campaign to create: a draft.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    transform = without(&["status", "paused", "schedule_for", "schedule_for_local"]),
    transform = either(&[(&["name", "sender_profile_id", "audience_mode"], OTHERS)])
)]
pub(crate) struct CreateCampaign(pub(crate) CampaignBody);

/// One change of a campaign: fields of a draft, or its status, or a pause, or its time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transform = either(&[(&[], OTHERS), (&["status"], &[]), (&["paused"], &[]), (&["schedule_for"], &[]), (&["schedule_for_local"], &[])]))]
pub(crate) struct ChangeCampaign(pub(crate) CampaignBody);

/// The fields of create and of PATCH. `status`, `paused`, `schedule_for` and `schedule_for_local` belong to PATCH only.
#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(inline)]
pub(crate) struct CampaignBody {
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    name: Patch<String>,
    sender_profile_id: Patch<Id>,
    /// A template, or a subject and a body; the campaign's own subject and preheader replace the template's.
    template_id: Patch<Id>,
    #[schemars(with = "Option<Name<LINE_MAX>>")]
    subject: Patch<String>,
    #[schemars(with = "Option<Line<LINE_MAX>>")]
    preheader: Patch<String>,
    /// This or `mjml`: giving one takes the other's place.
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    body_html: Patch<String>,
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    mjml: Patch<String>,
    /// Default: made of the HTML.
    #[schemars(length(max = SOURCE_MAX))]
    body_text: Patch<String>,
    /// The name of the layout around the campaign's own bodies.
    #[schemars(length(max = SNIPPET_NAME_MAX))]
    layout: Patch<String>,
    #[schemars(extend("enum" = GOALS))]
    campaign_goal: Patch<String>,
    #[schemars(extend("enum" = MODES))]
    audience_mode: Patch<String>,
    /// With audience_mode list.
    list_id: Patch<Id>,
    /// With audience_mode segment.
    segment_id: Patch<Id>,
    /// With audience_mode tags: any of them.
    #[schemars(length(max = TAGS_MAX))]
    tag_ids: Patch<Vec<Id>>,
    /// Default: marketing_campaign. The classification follows from it.
    #[schemars(with = "Option<MessagePurpose>")]
    message_purpose: Patch<String>,
    /// Default: normal.
    #[schemars(extend("enum" = Urgency::NAMES))]
    urgency: Patch<String>,
    /// Required when message_purpose is not marketing.
    #[schemars(length(max = REASON_MAX))]
    audience_reason: Patch<String>,
    /// Which contact gets which is a stable hash of campaign and contact. What a variant leaves out, the campaign says.
    #[schemars(length(min = VARIANTS_MIN, max = VARIANTS_MAX))]
    pub(super) variants: Patch<Vec<NewVariant>>,
    pub(super) ab_test: Patch<NewAbTest>,
    /// What is not sent by then is missed.
    #[schemars(extend("format" = "date-time"))]
    pub(super) not_after: Patch<String>,
    /// What is missed is skipped as `window_missed`, sent late, or held: the campaign is paused.
    #[schemars(with = "Option<OnMiss>", extend("default" = "skip"))]
    pub(super) on_miss: Patch<String>,
    /// No minute sees more mails of this campaign.
    #[schemars(range(min = 1, max = PACE_MAX))]
    pub(super) max_per_minute: Patch<i64>,
    pub(super) tripwire: Patch<NewTripwire>,
    #[schemars(extend("enum" = ["cancelled", "draft"]))]
    pub(crate) status: Patch<String>,
    pub(crate) paused: Patch<bool>,
    /// Not more than 5 minutes past nor a year ahead.
    #[schemars(extend("format" = "date-time"))]
    pub(crate) schedule_for: Patch<String>,
    /// A time of the day in each recipient's time zone.
    #[schemars(regex(pattern = LOCAL_TIME_PATTERN))]
    pub(crate) schedule_for_local: Patch<String>,
}

impl CampaignBody {
    /// Whether any create field is there, null or not.
    pub(crate) fn has_fields(&self) -> bool {
        let none = Self {
            status: self.status.clone(),
            paused: self.paused,
            schedule_for: self.schedule_for.clone(),
            schedule_for_local: self.schedule_for_local.clone(),
            ..Self::default()
        };
        *self != none
    }

    /// Whether a field is there that decides what the mail says.
    fn has_content(&self) -> bool {
        self.template_id.is_given()
            || self.subject.is_given()
            || self.preheader.is_given()
            || self.body_html.is_given()
            || self.mjml.is_given()
            || self.body_text.is_given()
            || self.layout.is_given()
    }
}

/// A campaign that is asked for: a new one, or what becomes of another that is changed or copied.
#[derive(Debug)]
pub(crate) struct CampaignRequest {
    body: CampaignBody,
    before: Option<CampaignRow>,
    is_copy: bool,
}

impl CampaignRequest {
    /// What a create body asks for.
    pub(crate) fn new(body: CampaignBody) -> Self {
        Self { body, before: None, is_copy: false }
    }

    /// What a PATCH body makes of a campaign.
    pub(crate) fn of(row: CampaignRow, body: CampaignBody) -> Self {
        Self { body, before: Some(row), is_copy: false }
    }

    /// A copy of a campaign under another name. What it says is checked again, because fields that it names may be removed.
    pub(crate) fn copy_of(row: CampaignRow, name: String) -> Self {
        let body = CampaignBody { name: Patch::Value(name), ..CampaignBody::default() };
        Self { body, before: Some(row), is_copy: true }
    }

    /// Checks the request alone, then against the tenant's senders, audiences and templates, and stores what it says.
    ///
    /// # Errors
    /// 400 with every fault; 404 for what is named and not there.
    pub(crate) async fn resolve(self, ctx: &mut RequestContext) -> Result<CampaignDraft, ApiError> {
        let mut draft = self.validate()?;
        let tenant = ctx.tenant;
        check_audience(ctx.db(), tenant, &draft).await?;
        senders::lock_for_use(ctx.db(), tenant, draft.sender_profile_id).await?;
        let says_anew = draft.content_id.is_nil();
        if says_anew {
            (draft.content_id, draft.warnings) = content::compose_content(ctx, &draft.content).await?;
            draft.content.check_one_source()?;
        }
        for at in 0..draft.rules.variants.len() {
            let variant = &draft.rules.variants[at];
            let content = variant.content.or_campaign(&draft.content);
            let content_id = if content == draft.content {
                draft.content_id
            } else if says_anew || variant.content_id.is_nil() {
                let composed = content::compose_content(ctx, &content).await;
                let composed = composed.and_then(|composed| variant.content.check_one_source().map(|()| composed));
                let (id, warnings) = composed.map_err(|error| within_variant(error, at))?;
                // A body of the campaign was warned of already.
                let warnings = warnings.into_iter().filter(|_| variant.content.body != OwnBody::default());
                draft.warnings.extend(warnings.map(|warning| warning.within(&format!("variants[{at}]"))));
                id
            } else {
                // Stored before, and not asked about: its template may be archived meanwhile.
                variant.content_id
            };
            draft.rules.variants[at].content_id = content_id;
        }
        Ok(draft)
    }

    fn validate(self) -> Result<CampaignDraft, ApiError> {
        let Self { mut body, before, is_copy } = self;
        let before = before.as_ref();
        let mut faults = Faults::default();
        let rules = Rules::validate(&mut faults, &mut body, before, is_copy, Utc::now());
        // What it says already, when the request does not touch that.
        let content_id = before.filter(|_| !is_copy && !body.has_content()).map(|row| row.content_id);
        let id = |given: Patch<Id>, old: Option<Uuid>| given.applied_to(old.map(Id)).map(|id| id.0);

        let name = faults.name("name", body.name.applied_to(before.map(|row| row.name.clone())));
        let sender = id(body.sender_profile_id, before.map(|row| row.sender_profile_id));
        let sender = faults.required("sender_profile_id", sender);
        let said = before.map(|row| row.content.0.clone()).unwrap_or_default();
        let (body_html, mjml) = either_body((said.body.body_html, said.body.mjml), body.body_html, body.mjml);
        let content = CampaignContent {
            template_id: id(body.template_id, said.template_id),
            subject: body.subject.applied_to(said.subject),
            preheader: body.preheader.applied_to(said.preheader),
            body: OwnBody {
                body_html,
                mjml,
                body_text: body.body_text.applied_to(said.body.body_text),
                layout: body.layout.applied_to(said.body.layout),
            },
        };
        content.check(&mut faults, "", false);

        let mode = body.audience_mode.applied_to(before.map(|row| row.audience_mode.clone()));
        let audience_mode = faults.required("audience_mode", mode).unwrap_or_default();
        let list_id = id(body.list_id, before.and_then(|row| row.list_id));
        let segment_id = id(body.segment_id, before.and_then(|row| row.segment_id));
        let mut tag_ids: Vec<Uuid> = match body.tag_ids {
            Patch::Value(given) => given.into_iter().map(|id| id.0).collect(),
            Patch::Null => Vec::new(),
            Patch::Absent => before.map(|row| row.tag_ids.clone()).unwrap_or_default(),
        };
        tag_ids.sort_unstable();
        match audience_mode.as_str() {
            "list" => drop(faults.required("list_id", list_id)),
            "segment" => drop(faults.required("segment_id", segment_id)),
            "tags" if tag_ids.is_empty() => faults.add("tag_ids", "required", "names no tag"),
            "" | "tags" => {}
            other => faults.one_of("audience_mode", other, &MODES),
        }
        if tag_ids.len() > TAGS_MAX {
            faults.add("tag_ids", "too_many", format!("names more than {TAGS_MAX} tags"));
        }
        let is_each_once = tag_ids.windows(2).all(|pair| pair[0] != pair[1]);
        faults.require(is_each_once, "tag_ids", "duplicate", "names a tag twice");

        let campaign_goal = body.campaign_goal.applied_to(before.and_then(|row| row.campaign_goal.clone()));
        if let Some(goal) = &campaign_goal {
            faults.one_of("campaign_goal", goal, &GOALS);
        }
        let urgency = body.urgency.applied_to(before.map(|row| row.urgency.clone()));
        let urgency = urgency.unwrap_or_else(|| Urgency::Normal.as_str().to_owned());
        faults.one_of("urgency", &urgency, Urgency::NAMES);
        let purpose = body.message_purpose.applied_to(before.map(|row| row.message_purpose.clone()));
        let purpose = purpose
            .and_then(|text| faults.word("message_purpose", &text, MessagePurpose::ALL, MessagePurpose::as_str))
            .unwrap_or(MessagePurpose::MarketingCampaign);
        let classification = purpose.classification();
        let audience_reason = body.audience_reason.applied_to(before.and_then(|row| row.audience_reason.clone()));
        check_reason(&mut faults, classification, audience_reason.as_deref());
        faults.finish()?;
        Ok(CampaignDraft {
            name,
            sender_profile_id: sender.unwrap_or_default(),
            content,
            content_id: content_id.unwrap_or_default(),
            campaign_goal,
            audience_mode,
            list_id,
            segment_id,
            tag_ids,
            message_purpose: purpose.as_str().to_owned(),
            classification,
            urgency,
            audience_reason,
            rules,
            warnings: Vec::new(),
        })
    }
}

/// A campaign that ignores marketing opt-outs needs a reason.
fn check_reason(faults: &mut Faults, classification: Classification, reason: Option<&str>) {
    let blank = reason.is_none_or(|reason| reason.trim().is_empty());
    if classification != Classification::Marketing && blank {
        faults.add("audience_reason", "required", "is required when message_purpose is not marketing");
    }
    faults.optional("audience_reason", reason, REASON_MAX);
}

async fn check_audience(db: &mut PgConnection, tenant: Uuid, draft: &CampaignDraft) -> Result<(), ApiError> {
    // Held: none of them is removed before the campaign names it.
    let named: Vec<Uuid> = draft.list_id.iter().chain(&draft.tag_ids).copied().collect();
    let held = hold_audiences(db, tenant, &named).await?;
    if let Some(list) = draft.list_id {
        held.require(AudienceKind::List, list)?;
    }
    if let Some(segment) = draft.segment_id {
        segments::lock_for_use(db, tenant, segment).await?;
    }
    draft.tag_ids.iter().try_for_each(|tag| held.require(AudienceKind::Tag, *tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn body(change: Value) -> CampaignBody {
        let mut body = json!({
            "name": "Spring", "sender_profile_id": Uuid::max().to_string(), "subject": "Hello", "body_html": "<p>Hello</p>",
            "audience_mode": "list", "list_id": Uuid::max().to_string(),
        });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(body).unwrap()
    }

    fn faults(change: Value) -> Vec<(String, String)> {
        match CampaignRequest::new(body(change)).validate() {
            Ok(_) => Vec::new(),
            Err(error) => error.fields.into_iter().map(|fault| (fault.path, fault.code.into_owned())).collect(),
        }
    }

    #[rstest]
    #[case::complete(json!({}), None)]
    #[case::no_name(json!({"name": null}), Some(("name", "required")))]
    #[case::two_lines(json!({"name": "a\nb"}), Some(("name", "control_character")))]
    #[case::no_sender(json!({"sender_profile_id": null}), Some(("sender_profile_id", "required")))]
    #[case::no_subject(json!({"subject": null}), Some(("subject", "required")))]
    #[case::blank_body(json!({"body_html": " "}), Some(("body_html", "empty")))]
    #[case::template_alone(json!({"subject": null, "body_html": null, "template_id": Uuid::max().to_string()}), None)]
    #[case::no_mode(json!({"audience_mode": null}), Some(("audience_mode", "required")))]
    #[case::unknown_mode(json!({"audience_mode": "all"}), Some(("audience_mode", "not_allowed")))]
    #[case::no_list(json!({"list_id": null}), Some(("list_id", "required")))]
    #[case::no_segment(json!({"audience_mode": "segment"}), Some(("segment_id", "required")))]
    #[case::no_tags(json!({"audience_mode": "tags", "tag_ids": []}), Some(("tag_ids", "required")))]
    #[case::a_tag(json!({"audience_mode": "tags", "tag_ids": [Uuid::max().to_string()]}), None)]
    #[case::goal(json!({"campaign_goal": "fun"}), Some(("campaign_goal", "not_allowed")))]
    #[case::known_goal(json!({"campaign_goal": "cross_sell"}), None)]
    #[case::urgency(json!({"urgency": "asap"}), Some(("urgency", "not_allowed")))]
    #[case::purpose(json!({"message_purpose": "spam"}), Some(("message_purpose", "not_allowed")))]
    #[case::operational_without_reason(json!({"message_purpose": "service_notice"}), Some(("audience_reason", "required")))]
    #[case::blank_reason(json!({"message_purpose": "receipt", "audience_reason": " "}), Some(("audience_reason", "required")))]
    #[case::with_reason(json!({"message_purpose": "receipt", "audience_reason": "They bought it"}), None)]
    #[case::marketing_needs_no_reason(json!({"message_purpose": "newsletter"}), None)]
    fn a_campaign_is_checked_by_its_rules(#[case] change: Value, #[case] fault: Option<(&str, &str)>) {
        let expected: Vec<_> = fault.into_iter().map(|(path, code)| (path.to_owned(), code.to_owned())).collect();
        assert_eq!(faults(change), expected);
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let found = faults(json!({"name": null, "urgency": "asap", "audience_mode": "all"}));
        assert_eq!(
            found.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(),
            ["name", "audience_mode", "urgency"]
        );
    }

    #[test]
    fn too_many_variants_are_not_read() {
        let many = vec![json!({"name": "A"}); VARIANTS_MAX + 1];
        assert_eq!(faults(json!({"variants": many})), [("variants".to_owned(), "too_many".to_owned())]);
    }

    #[test]
    fn a_tag_is_named_once_and_not_too_many_are() {
        let tags = |ids: Vec<String>| faults(json!({"audience_mode": "tags", "tag_ids": ids}));
        let tag = Uuid::max().to_string();
        assert_eq!(tags(vec![tag.clone(), tag]), [("tag_ids".to_owned(), "duplicate".to_owned())]);
        let many = (0..=TAGS_MAX as u128).map(|id| Uuid::from_u128(id).to_string()).collect();
        assert_eq!(tags(many), [("tag_ids".to_owned(), "too_many".to_owned())]);
    }
}
