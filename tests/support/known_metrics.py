"""Names of metrics that dashboards of earlier runs read. Each is reported by a run that enables it."""

import itertools
import re

ACTOR = """
actor/{reward,success,no_error,no_answer,overflow,num_turns,prompt_tokens,output_tokens}_mean
actor/{reward,success}_{max,min,var}
actor/{latency,model_version}_mean
actor/{always,never,sometimes}_success
actor/{published_samples,problem_queue_size,result_queue_size,finished_groups,trainer_model_version}
actor/time_since_start
actor/{samples,output_tokens,prompt_tokens,total_tokens}_per_second
"""

ACTOR_WITH_PARTS = """
actor/<part>/{reward,success,no_error,no_answer,overflow,num_turns,prompt_tokens,output_tokens}_mean
"""
"""`<part>`: each dataset and each domain."""

ACTOR_WITH_MIX = """
actor/domain_mix_{count,actual,target}/<part>
"""
"""`<part>`: each domain."""

ACTOR_WITH_PENALTY = """
actor/{penalty_delta,overlong}_mean
actor/success_given_overlong
"""

ACTOR_WITH_EVALUATION = """
actor/test_{reward,success,no_error,no_answer,overflow,num_turns,prompt_tokens,output_tokens}_mean
actor/test_{reward,success}_{max,min,var}
actor/test_{latency,model_version}_mean
actor/test_{always,never,sometimes}_success
actor/trainer_model_version
"""

PREPROCESS = """
preprocessor/{published_samples,published_model_version,samples_per_second,tokens_per_second}
preprocessor/queue/{raw_samples,raw,output_samples,output}
preprocessor/{filtered_out_samples,total_filtered_out_samples}
"""

FINETUNE = """
stats/{lr,grad_norm,samples,tokens,samples_too_old_to_queue,samples_too_old_to_train,passes,completed_steps}
stats/{epoch,min_actor_version,max_actor_version,time_waiting_for_data,lag}
stats/queue/batches
throughput/{tokens_perGPU_per_sec,tokens_per_step,micro_batches_per_step,tokens_per_sec}
throughput/{real_tokens_per_sec,sec_per_pass,steps_per_sec,samples_per_sec,sec_per_step}
throughput/{unique_tokens_per_step,tokens_per_unique_token,row_fill}
throughput/{,min_,max_}{tokens,sequences}_per_micro_batch
rl/{,max_,min_}{loss,reward,advantage,kl,token_weight}
rl/{entropy,old_logprobs,new_logprobs,ref_logprobs,kl_new_old,mean_abs_log_ratio_new_old}
rl/ratio_{new_old,new_old_sum,new_old_squared_sum,ref_new,ref_old}
rl/clamp_log_ratio_{ref_new,new_old}_indicator
rl/{kl_coef,entropy_bonus_coef,num_output_tokens_sum,input_size,ess}
"""

FINETUNE_WITH_VALUES = """
rl/value_{mean,max,min,loss,mse}
"""


def names(pattern: str, *parts: str) -> set[str]:
    """Every name of a block: alternatives between braces spelt out, `<part>` replaced by each part."""
    found: set[str] = set()
    for line in pattern.split():
        pieces = re.split(r"\{([^}]*)\}", line)
        choices = [piece.split(",") if at % 2 else [piece] for at, piece in enumerate(pieces)]
        found |= {"".join(chosen) for chosen in itertools.product(*choices)}
    return {name.replace("<part>", part) for name in found for part in parts or ("<part>",)}
