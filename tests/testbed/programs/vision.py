"""Models that look at images, and what works on images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.testbed.training import Rows, array, fill, filled, listed, program, trained


def classified(
    model: Any, size: int = 32, batch: int = 4, classes: int = 5, steps: int = 20, lr: float = 1e-3
) -> Rows:
    images, labels = filled(batch, 3, size, size), listed(classes, batch)
    return trained(model, lambda: F.cross_entropy(model(images), labels), steps, lr=lr)


def timm_model(name: str, size: int = 32, steps: int = 20, batch: int = 4, **given: Any) -> Rows:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=5, **given)
    return classified(model, size=size, steps=steps, batch=batch)


@program("timm")
def resnet() -> Rows:
    return timm_model("resnet18")


@program("timm")
def test_vit() -> Rows:
    return timm_model("test_vit", size=160, batch=2)


@program("timm")
def test_convnext() -> Rows:
    return timm_model("test_convnext", size=64)


@program("timm")
def test_efficientnet() -> Rows:
    return timm_model("test_efficientnet", size=64)


@program("timm")
def test_resnet() -> Rows:
    return timm_model("test_resnet", size=64)


@program("timm")
def test_byobnet() -> Rows:
    return timm_model("test_byobnet", size=64)


@program("timm")
def test_mambaout() -> Rows:
    return timm_model("test_mambaout", size=64)


@program("timm")
def test_nfnet() -> Rows:
    return timm_model("test_nfnet", size=64)


@program("timm")
def mobilenet_v3() -> Rows:
    return timm_model("mobilenetv3_small_050", size=64)


@program("timm")
def swin() -> Rows:
    return timm_model(
        "swin_tiny_patch4_window7_224",
        size=32,
        batch=2,
        img_size=32,
        window_size=4,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
        drop_path_rate=0.0,
    )


@program("timm")
def mixer() -> Rows:
    return timm_model("mixer_s32_224", img_size=64, size=64, batch=2)


@program("torchvision")
def torchvision_resnet() -> Rows:
    from torchvision.models import resnet18

    return classified(resnet18(num_classes=5))


@program("torchvision")
def torchvision_mobilenet() -> Rows:
    from torchvision.models import mobilenet_v2

    return classified(mobilenet_v2(num_classes=5, width_mult=0.25, dropout=0.0), size=64, lr=1e-5)


@program("efficientnet-pytorch")
def efficientnet() -> Rows:
    from efficientnet_pytorch import EfficientNet

    model = EfficientNet.from_name(
        "efficientnet-b0", num_classes=5, dropout_rate=0.0, drop_connect_rate=0.0
    )
    return classified(model, batch=6, steps=5)


@program("segmentation-models-pytorch")
def unet() -> Rows:
    import segmentation_models_pytorch as smp

    model = smp.Unet(
        "resnet18", encoder_weights=None, classes=2, encoder_depth=3, decoder_channels=(16, 8, 8)
    )
    loss = smp.losses.DiceLoss("multiclass")
    images, labels = filled(2, 3, 32, 32), listed(2, 2, 32, 32)
    return trained(model, lambda: loss(model(images), labels))


@program("mlp-mixer-pytorch")
def mlp_mixer() -> Rows:
    from mlp_mixer_pytorch import MLPMixer

    return classified(
        MLPMixer(image_size=16, channels=3, patch_size=4, dim=16, depth=2, num_classes=5), size=16
    )


@program("siren-pytorch")
def siren() -> Rows:
    from siren_pytorch import SirenNet, SirenWrapper

    net = SirenNet(dim_in=2, dim_hidden=16, dim_out=3, num_layers=3, w0_initial=30.0)
    model = SirenWrapper(net, image_width=8, image_height=8)
    image = filled(1, 3, 8, 8).sigmoid()
    return trained(model, lambda: model(image))


@program("vector-quantize-pytorch")
def vector_quantizer() -> Rows:
    from vector_quantize_pytorch import VectorQuantize

    class Coder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = torch.nn.Linear(12, 8), torch.nn.Linear(8, 12)
            self.quantize = VectorQuantize(
                dim=8, codebook_size=16, decay=0.8, commitment_weight=1.0
            )

        def forward(self, x: Any) -> Any:
            codes, _, commitment = self.quantize(self.encode(x))
            return F.mse_loss(self.decode(codes), x) + commitment.sum()

    model, x = Coder(), filled(2, 20, 12)
    return trained(model, lambda: model(x))


@program("vector-quantize-pytorch")
def finite_scalar_quantizer() -> Rows:
    from vector_quantize_pytorch import FSQ, ResidualVQ

    class Coder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = torch.nn.Linear(12, 4), torch.nn.Linear(4, 12)
            self.scalar = FSQ(levels=[8, 5, 5, 5])
            self.residual = ResidualVQ(dim=12, num_quantizers=2, codebook_size=8)

        def forward(self, x: Any) -> Any:
            codes, _ = self.scalar(self.encode(x))
            y, _, loss = self.residual(self.decode(codes))
            return F.mse_loss(y, x) + loss.sum()

    model, x = Coder(), filled(2, 20, 12)
    return trained(model, lambda: model(x))


@program("denoising-diffusion-pytorch", "float32")
def diffusion() -> Rows:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    model = GaussianDiffusion(
        Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=8, timesteps=20
    )
    images = filled(2, 3, 8, 8).sigmoid()
    return trained(model, lambda: model(images))


@program("denoising-diffusion-pytorch", "float32")
def diffusion_in_one_dim() -> Rows:
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D

    model = GaussianDiffusion1D(
        Unet1D(dim=8, dim_mults=(1, 2), channels=3), seq_length=16, timesteps=20
    )
    x = filled(2, 3, 16).sigmoid()
    rows = trained(model, lambda: model(x))
    rows["sampled"] = array(model.sample(batch_size=2))
    return rows


@program("kornia", "float32")
def augmented() -> Rows:
    import kornia

    images = filled(2, 3, 16, 16).sigmoid().requires_grad_()
    blurred = kornia.filters.gaussian_blur2d(images, (3, 3), (1.0, 1.0))
    edges = kornia.filters.sobel(blurred)
    angle = torch.tensor([10.0, -20.0])
    turned = kornia.geometry.transform.rotate(edges, angle)
    lab = kornia.color.rgb_to_lab(turned)
    loss = kornia.losses.ssim_loss(kornia.color.lab_to_rgb(lab), images.detach(), 5)
    loss.backward()
    return {"loss": array(loss), "gradient of images": array(images.grad), "lab": array(lab)}


@program("byol-pytorch")
def byol() -> Rows:
    from byol_pytorch import BYOL
    from torchvision.models import resnet18

    model = BYOL(
        resnet18(num_classes=8),
        image_size=32,
        hidden_layer="avgpool",
        projection_size=8,
        projection_hidden_size=16,
        augment_fn=torch.nn.Identity(),
        augment_fn2=torch.nn.Identity(),
    )
    images = filled(4, 3, 32, 32)
    fill(model)

    def loss() -> Any:
        return model(images)

    rows = trained(model, loss, steps=5, lr=1e-5)
    model.update_moving_average()
    return rows


@program("monai")
def monai_unet() -> Rows:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    model = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=(4, 8),
        strides=(2,),
        num_res_units=1,
    )
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    volumes, labels = filled(2, 1, 8, 8, 8), listed(2, 2, 1, 8, 8, 8)
    return trained(model, lambda: loss(model(volumes), labels))


@program("diffusers", "float32")
def latent_diffusion() -> Rows:
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    scheduler = DDPMScheduler(num_train_timesteps=20)
    images, noise, times = filled(2, 3, 8, 8), filled(2, 3, 8, 8, salt=1), listed(20, 2)

    def loss() -> Any:
        noisy = scheduler.add_noise(images, noise, times)
        return F.mse_loss(model(noisy, times).sample, noise)

    return trained(model, loss)
