//! Sequences: their states, steps, and how an enrollment ends.

use serde::{Deserialize, Serialize};

use super::closed_set;

closed_set! {
    /// The life of a sequence.
    SequenceStatus {
        /// No contact is enrolled.
        Draft = "draft",
        /// Contacts may be enrolled, and go on.
        Active = "active",
        /// Nothing moves; `next_action_at` is kept.
        Paused = "paused",
        /// Over: enrollments have exited.
        Archived = "archived",
    }

    /// What a step of a sequence does.
    StepType {
        /// Sends a template.
        SendEmail = "send_email",
        /// Only waits.
        Wait = "wait",
        /// Adds the contact to a tag.
        ApplyTag = "apply_tag",
        /// Removes the contact from a tag.
        RemoveTag = "remove_tag",
        /// Sets a field of the contact.
        UpdateField = "update_field",
        /// Sets the contact's lifecycle stage.
        UpdateLifecycleStage = "update_lifecycle_stage",
        /// Tells the tenant's owner by mail.
        NotifyOwner = "notify_owner",
        /// Raises `task.created`.
        CreateTask = "create_task",
        /// Raises `opportunity.created`.
        CreateOpportunity = "create_opportunity",
        /// Ends the sequence for the contact.
        EndSequence = "end_sequence",
        /// Subscribes the contact to, or removes it from, a list or all marketing.
        UpdateSubscription = "update_subscription",
        /// Suppresses the address.
        AddSuppression = "add_suppression",
        /// Calls an address of the product's.
        CallProductWebhook = "call_product_webhook",
    }

    /// The unit of a step's delay.
    DelayUnit {
        /// Sixty seconds.
        Minutes = "minutes",
        /// Sixty minutes.
        Hours = "hours",
        /// The same time of day, so many days later, in the contact's zone.
        Days = "days",
        /// Likewise, Monday to Friday only.
        BusinessDays = "business_days",
    }

    /// The life of an enrollment.
    EnrollmentStatus {
        /// Goes on at `next_action_at`.
        Active = "active",
        /// Its sequence is paused.
        Paused = "paused",
        /// Every step is done.
        Completed = "completed",
        /// Left before the end; `exit_reason` says why.
        Exited = "exited",
        /// A step could not be done.
        Failed = "failed",
    }

    /// Why an enrollment ended before its last step.
    ExitReason {
        /// The contact left marketing.
        Unsubscribed = "unsubscribed",
        /// The address does not exist.
        Bounced = "bounced",
        /// The contact reported a mail as spam.
        Complained = "complained",
        /// The contact answered.
        Replied = "replied",
        /// The address was suppressed otherwise.
        Suppressed = "suppressed",
        /// An `end_sequence` step.
        EndStep = "end_step",
        /// An event of the product that the sequence names in `exit_on_event`.
        Event = "event",
        /// Ended by the caller, or by a merge of two contacts that both were in the sequence.
        Manual = "manual",
        /// The sequence was archived.
        SequenceArchived = "sequence_archived",
        /// The contact was archived or erased.
        ContactArchived = "contact_archived",
        /// It went through more steps in a day than any honest sequence has.
        LoopDetected = "loop_detected",
        /// A step could not be done.
        Error = "error",
    }
}
