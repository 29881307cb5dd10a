//! What each provider's answers mean.

use std::time::Duration;

use rstest::rstest;

use super::{provider, send, stand_in::StandIn};
use crate::provider::{Answer, PingFault, ProviderKind};
use smtp::classify::{Class, ReplyDecision, ReplyOutcome, Scope};

const ACCOUNT: ReplyDecision = ReplyDecision::defer(Class::Configuration, Scope::Relay);
const SENDER: ReplyDecision = ReplyDecision::defer(Class::Configuration, Scope::Recipient);
const RATE: ReplyDecision = ReplyDecision::defer(Class::Throttled, Scope::Relay);
const TEMPORARY: ReplyDecision = ReplyDecision::defer(Class::Temporary, Scope::Recipient);
const UNKNOWN: ReplyDecision = ReplyDecision { outcome: ReplyOutcome::Unknown, scope: Scope::Connection };

const fn fails(class: Class) -> ReplyDecision {
    ReplyDecision { outcome: ReplyOutcome::Fail { class, suppress: false }, scope: Scope::Recipient }
}

use Class::{Content, Inactive, Policy};
use ProviderKind::{Mailgun, Postmark, Resend, Sendgrid, Ses};

#[rstest]
#[case::ses_rate(
    Ses,
    429,
    "x-amzn-errortype: TooManyRequestsException\r\n",
    r#"{"message":"Maximum sending rate exceeded."}"#,
    RATE
)]
#[case::ses_paused(Ses, 400, "x-amzn-errortype: SendingPausedException:http://x/\r\n", "{}", ACCOUNT)]
#[case::ses_domain(
    Ses,
    400,
    "",
    r#"{"__type":"com.amazonaws#MailFromDomainNotVerifiedException","message":"x"}"#,
    SENDER
)]
#[case::ses_identity(
    Ses,
    400,
    "x-amzn-errortype: MessageRejected\r\n",
    r#"{"message":"Email address is not verified."}"#,
    SENDER
)]
#[case::ses_content(Ses, 400, "x-amzn-errortype: MessageRejected\r\n", r#"{"message":"Virus"}"#, fails(Content))]
#[case::ses_key(Ses, 403, "x-amzn-errortype: InvalidSignatureException\r\n", "{}", ACCOUNT)]
#[case::ses_internal(Ses, 500, "x-amzn-errortype: InternalServiceErrorException\r\n", "{}", UNKNOWN)]
#[case::ses_bare_500(Ses, 500, "", "", UNKNOWN)]
#[case::postmark_inactive(Postmark, 422, "", r#"{"ErrorCode":406,"Message":"inactive"}"#, fails(Inactive))]
#[case::postmark_address(Postmark, 422, "", r#"{"ErrorCode":300,"Message":"Invalid 'To' address"}"#, fails(Policy))]
#[case::postmark_request(Postmark, 422, "", r#"{"ErrorCode":300,"Message":"Attachment"}"#, fails(Content))]
#[case::postmark_signature(Postmark, 422, "", r#"{"ErrorCode":400,"Message":"no signature"}"#, SENDER)]
#[case::postmark_credits(Postmark, 422, "", r#"{"ErrorCode":405,"Message":"no credits"}"#, ACCOUNT)]
#[case::postmark_token(Postmark, 401, "", r#"{"ErrorCode":10,"Message":"bad token"}"#, ACCOUNT)]
#[case::postmark_rate(Postmark, 429, "", "", RATE)]
#[case::postmark_500(Postmark, 500, "", r#"{"ErrorCode":0,"Message":"oops"}"#, TEMPORARY)]
#[case::postmark_bare_500(Postmark, 500, "", "<html>", UNKNOWN)]
#[case::postmark_unreadable(Postmark, 200, "", "<html>", UNKNOWN)]
#[case::sendgrid_address(
    Sendgrid,
    400,
    "",
    r#"{"errors":[{"message":"Does not contain a valid address.","field":"personalizations.0.to.0.email"}]}"#,
    fails(Policy)
)]
#[case::sendgrid_content(Sendgrid, 400, "", r#"{"errors":[{"message":"too long","field":"subject"}]}"#, fails(Content))]
#[case::sendgrid_large(Sendgrid, 413, "", "", fails(Content))]
#[case::sendgrid_identity(
    Sendgrid,
    403,
    "",
    r#"{"errors":[{"message":"The from address does not match a verified Sender Identity.","field":"from"}]}"#,
    SENDER
)]
#[case::sendgrid_key(Sendgrid, 401, "", r#"{"errors":[{"message":"Maximum credits exceeded"}]}"#, ACCOUNT)]
#[case::sendgrid_rate(Sendgrid, 429, "", r#"{"errors":[{"message":"too many requests"}]}"#, RATE)]
#[case::sendgrid_500(Sendgrid, 500, "", r#"{"errors":[{"message":"internal"}]}"#, TEMPORARY)]
#[case::sendgrid_bare_502(Sendgrid, 502, "", "", UNKNOWN)]
#[case::sendgrid_sandbox(Sendgrid, 200, "", "", UNKNOWN)]
#[case::mailgun_address(
    Mailgun,
    400,
    "",
    r#"{"message":"'to' parameter is not a valid address. please check documentation"}"#,
    fails(Policy)
)]
#[case::mailgun_from(Mailgun, 400, "", r#"{"message":"'from' parameter is not a valid address"}"#, SENDER)]
#[case::mailgun_key(Mailgun, 401, "", "Forbidden", ACCOUNT)]
#[case::mailgun_payment(Mailgun, 402, "", r#"{"message":"Request Failed"}"#, ACCOUNT)]
#[case::mailgun_domain(Mailgun, 404, "", r#"{"message":"Domain not found: mg"}"#, ACCOUNT)]
#[case::mailgun_rate(Mailgun, 429, "", "{}", RATE)]
#[case::mailgun_500(Mailgun, 500, "", r#"{"message":"Internal"}"#, UNKNOWN)]
#[case::resend_to(Resend, 422, "", r#"{"name":"validation_error","message":"Invalid `to` field."}"#, fails(Policy))]
#[case::resend_content(Resend, 422, "", r#"{"name":"invalid_attachment","message":"x"}"#, fails(Content))]
#[case::resend_domain(
    Resend,
    403,
    "",
    r#"{"name":"validation_error","message":"The acme.example domain is not verified."}"#,
    SENDER
)]
#[case::resend_key(Resend, 403, "", r#"{"name":"invalid_api_key","message":"x"}"#, ACCOUNT)]
#[case::resend_quota(Resend, 429, "", r#"{"name":"daily_quota_exceeded","message":"x"}"#, ACCOUNT)]
#[case::resend_rate(Resend, 429, "", r#"{"name":"rate_limit_exceeded","message":"x"}"#, RATE)]
#[case::resend_500(Resend, 500, "", r#"{"name":"application_error","message":"x"}"#, TEMPORARY)]
#[case::resend_other_body(Resend, 409, "", r#"{"name":"invalid_idempotent_request","message":"x"}"#, UNKNOWN)]
#[case::moved(Postmark, 301, "location: https://evil.example/\r\n", "", ACCOUNT)]
#[tokio::test]
async fn an_answer_means_what_the_provider_says(
    #[case] kind: ProviderKind,
    #[case] status: u16,
    #[case] headers: &'static str,
    #[case] body: &str,
    #[case] expected: ReplyDecision,
) {
    let stand_in = StandIn::answering(status, headers, body).await;
    let refused = send(provider(kind, &stand_in).as_ref()).await.unwrap_err();
    assert_eq!(refused.decision, expected, "{refused:?}");
    assert!(refused.answer.text.unwrap_or_default().chars().count() <= Answer::TEXT_MAX);
}

#[rstest]
#[case::seconds(Ses, "x-amzn-errortype: TooManyRequestsException\r\nretry-after: 7\r\n", "{}")]
#[case::postmark(Postmark, "retry-after: 7\r\n", "")]
#[case::mailgun(Mailgun, "retry-after: 7\r\n", "")]
#[case::resend(Resend, "ratelimit-reset: 7\r\n", r#"{"name":"rate_limit_exceeded"}"#)]
#[tokio::test]
async fn a_rate_limit_says_how_long_to_stay_away(
    #[case] kind: ProviderKind,
    #[case] headers: &'static str,
    #[case] body: &str,
) {
    let stand_in = StandIn::answering(429, headers, body).await;
    let refused = send(provider(kind, &stand_in).as_ref()).await.unwrap_err();
    assert_eq!((refused.decision, refused.wait), (RATE, Some(Duration::from_secs(7))));
}

#[rstest]
#[case::key(Postmark, 401, "", Err(PingFault::Credentials))]
#[case::rate(Sendgrid, 429, "", Err(PingFault::RateLimited))]
#[case::broken(Mailgun, 500, "", Err(PingFault::Refused))]
#[case::may_only_send(Resend, 401, r#"{"name":"restricted_api_key"}"#, Ok(()))]
#[case::ses_may_only_send(Ses, 403, r#"{"__type":"AccessDeniedException"}"#, Ok(()))]
#[tokio::test]
async fn a_ping_says_what_is_wrong(
    #[case] kind: ProviderKind,
    #[case] status: u16,
    #[case] body: &str,
    #[case] expected: Result<(), PingFault>,
) {
    let stand_in = StandIn::answering(status, "", body).await;
    assert_eq!(provider(kind, &stand_in).ping().await, expected);
}
